"""The demo's server, broken in the way that a row's ``fault`` asks for, and with a tool to call."""

import asyncio
import os

from fastapi import FastAPI
from pydantic import BaseModel
from resources_servers.numbered_list.app import NumberedListServer, VerifyRequest, VerifyResponse, text_of


class TrialRequest(VerifyRequest):
    fault: str | None = None
    word: str | None = None
    """To spell: then the reward is for having it spelt, not for a list."""


class SpellRequest(BaseModel):
    word: str


class SpellResponse(BaseModel):
    letters: str


class TrialListServer(NumberedListServer):
    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/spell")(self.spell)
        return app

    async def spell(self, body: SpellRequest) -> SpellResponse:
        return SpellResponse(letters="-".join(body.word))

    async def verify(self, body: TrialRequest) -> VerifyResponse:
        answer = await super().verify(body)
        if body.word is not None:
            answer.reward = float("-".join(body.word) in text_of(body))
        match body.fault:
            case "raise":
                raise ValueError("the judge is out to lunch")
            case "hang":
                await asyncio.sleep(3600)
            case "nan":
                answer.reward = float("nan")
            case "import":
                import a_module_that_is_not_installed  # noqa: F401
            case "exit":
                print("trial_list: out of paper")
                os._exit(3)
        return answer


if __name__ == "__main__":
    TrialListServer.run_webserver()
