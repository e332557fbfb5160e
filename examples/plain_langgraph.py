"""An ordinary LangGraph app, which knows nothing of Descant: it gains from the server's flag alone.

With a server of its own (the demo's model, untrained adapters), or with one that is running:

    pip install 'langchain-openai>=1.1.9'           # or Descant with its extra: pip install '.[examples]'
    python examples/plain_langgraph.py

    descant serve --model-path BASE --lora-paths plan=… act=… reflect=…
    python examples/plain_langgraph.py --server http://127.0.0.1:30000

Each agent is a model by name, "BASE:plan", at the server's OpenAI endpoint. They share a long system prompt and the
conversation, as text: the server tokenizes the whole of it for each, and finds what is the same in its cache.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated, Any, TypedDict

import httpx
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import SecretStr

AGENTS = {
    "plan": "Say in one sentence what to look for in the document.",
    "act": "Answer the question from the document.",
    "reflect": "Say in one sentence whether that answer is right.",
}
DOCUMENT = (Path(__file__).parent.parent / "README.md").read_text()


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def speaker(model: ChatOpenAI, cue: str) -> Any:
    def node(state: State) -> State:
        asked = HumanMessage(cue)
        return {"messages": [asked, model.invoke([*state["messages"], asked])]}

    return node


def app(base_url: str, base: str) -> Any:
    graph = StateGraph(State)
    for name, cue in AGENTS.items():
        model = ChatOpenAI(
            base_url=base_url,
            model=f"{base}:{name}",
            api_key=SecretStr("none"),
            temperature=0,
            max_completion_tokens=32,
        )
        graph.add_node(name, speaker(model, cue))
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "act")
    graph.add_edge("act", "reflect")
    graph.add_edge("reflect", END)
    return graph.compile()


# Up to here nothing is Descant's. What follows finds a server, and asks it what was reused.


def totals(url: str) -> dict[str, Any]:
    """Tokens since the server's start: of prompts, from the cache, and from the cache where another agent put them."""
    found: dict[str, Any] = httpx.get(f"{url}/server_info").json()["internal_states"][0]["kv_sharing_totals"]
    return found


def main() -> None:
    from descant.workflows.serving import server_or_own

    parser = argparse.ArgumentParser(description="An ordinary LangGraph app on a server that shares its KV cache.")
    parser.add_argument("--server", help="address of a running server; without it one is started")
    parser.add_argument("--question", default="What is shared between agents?")
    args = parser.parse_args()
    with server_or_own(args.server) as url:
        base = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        before = totals(url)
        messages = [SystemMessage(f"Work on this document.\n\n{DOCUMENT}"), HumanMessage(args.question)]
        state = app(f"{url}/v1", base).invoke({"messages": messages})
        after = totals(url)
    for name, message in zip(AGENTS, state["messages"][3::2], strict=True):
        print(f"{name}: {message.text.strip()}")
    prompt, cached, crossed = (
        after[key] - before[key] for key in ("prompt_tokens", "cached_tokens", "cross_agent_tokens")
    )
    print(f"\nThe agents read {prompt} tokens. {cached} came from the cache, {crossed} of these across agents.")


if __name__ == "__main__":
    main()
