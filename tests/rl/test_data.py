from rl.data import PromptOrder, group_requests


def test_file_order_leaves_the_last_partial_step_behind() -> None:
    order = PromptOrder(num_rows=5, seed=42, shuffle=False)
    first, cursor = order.take(0, 2)
    second, cursor = order.take(cursor, 2)
    third, cursor = order.take(cursor, 2)
    assert (first, second, third) == ((0, 1), (2, 3), (0, 1))
    assert cursor == 7  # row 4 of the first epoch stayed behind


def test_a_shuffle_is_a_permutation_that_depends_on_seed_and_epoch_only() -> None:
    order = PromptOrder(num_rows=20, seed=1, shuffle=True)
    assert sorted(order.epoch_order(0)) == list(range(20))
    assert order.epoch_order(0) == PromptOrder(num_rows=20, seed=1, shuffle=True).epoch_order(0)
    assert order.epoch_order(0) != order.epoch_order(1)
    assert order.epoch_order(0) != PromptOrder(num_rows=20, seed=2, shuffle=True).epoch_order(0)


def test_every_row_is_trained_once_per_epoch() -> None:
    order = PromptOrder(num_rows=12, seed=7, shuffle=True)
    cursor, seen = 0, []
    for _ in range(3):
        rows, cursor = order.take(cursor, 4)
        seen += rows
    assert sorted(seen) == list(range(12))


def test_groups_are_rows_not_prompts() -> None:
    rows = [{"question": "same"}, {"question": "same"}]
    requests = group_requests(rows, [1, 0], num_generations=2, first_group=4)
    assert [(r.group_id, r.rollout_id, r.row_index) for r in requests] == [(4, 0, 1), (4, 1, 1), (5, 0, 0), (5, 1, 0)]
