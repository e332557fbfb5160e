"""SGLang's frontend programs, run by an agent over a session's token ids.

    @sgl.function
    def answer(s, question):
        s += "Question: " + question + "\\nAnswer:" + sgl.gen("answer", stop="\\n")

    run_program(session, "plan", answer, question="…")["answer"]

The interpreter is SGLang's. It writes text; here each executor also has a session, which takes what the program wrote,
tokenized once, when the model is next asked, and what the model answers as the ids that came back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint
from sglang.lang.chat_template import get_chat_template_by_model_path
from sglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from sglang.lang.global_config import global_config
from sglang.lang.interpreter import ProgramState, StreamExecutor
from sglang.lang.ir import SglConcateAndAppend, SglFunction, SglSamplingParams

from descant.runtime import protocol
from descant.runtime.errors import DescantError
from descant.runtime.protocol import Answer
from descant.runtime.session import Session, mean_logprob
from descant.runtime.turn import Turn, TurnCancelled

LOGPROB_OPTIONS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")


class ProgramError(DescantError):
    """A program asks for what a token-exact trajectory cannot do."""


def run_program(
    session: Session,
    agent: str | None,
    program: SglFunction,
    /,
    *,
    sampling: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    on_text: Callable[[str], None] | None = None,
    on_write: Callable[[str], None] | None = None,
    **arguments: Any,
) -> ProgramState:
    """Run `program` where `session` stands, with `agent` (an adapter's name, or None) for all that it generates.

    Afterwards the session's ids go on with what the program wrote, and its turns with all that the program asked for,
    its forks included. If the program fails, the session stays as it was.

    Args:
        sampling: defaults for the program's `gen`, by SglFunction.run's names (temperature, max_new_tokens, …).
        timeout: seconds for the whole program.
        on_text: called with each piece of what the agent says, in the thread of the fork that said it.
        on_write: called with what the program itself writes, when the session takes it.
        arguments: the program's own; `program.bind` passes those that are named as one of the above.

    Returns:
        SGLang's state: `state["name"]`, `state.text()`, `state.get_meta_info("name")`, `state.ret_value`.

    Raises:
        RequestError, InterruptedTurn: a request failed, in the program or in one of its forks.
        ProgramError: the program asks for images, video, separate_reasoning or a sampled select.
        Whatever the program itself raises.
    """
    arguments = {**arguments, **program.bind_arguments}
    (trunk,) = session.fork(1)
    endpoint = AgentEndpoint(trunk, agent, timeout, on_text, on_write)
    # Without a thread of its own the trunk raises in ours.
    executor = AgentExecutor(endpoint, arguments, SglSamplingParams(**(sampling or {})), trunk, use_thread=False)
    state = ProgramState(executor)
    with session.cancelled_by(endpoint.cancel):
        try:
            state.ret_value = program.func(state, **arguments)
            executor.write()
            endpoint.join()
        except BaseException:
            endpoint.cancel()
            endpoint.wait()
            raise
    session.append_ids(trunk.ids[len(session) :])
    session.turns += endpoint.turns
    return state


class AgentEndpoint(RuntimeEndpoint):
    """The server as one agent's programs see it: each request has the agent's adapter and its session's ids.

    turns: all that was asked for, in the order in which it ended.
    branches: the executors of the program's forks.
    """

    def __init__(
        self,
        trunk: Session,
        agent: str | None,
        timeout: float | None,
        on_text: Callable[[str], None] | None,
        on_write: Callable[[str], None] | None,
    ) -> None:
        client = trunk.client
        # Past RuntimeEndpoint's own, which would ask the server in another way.
        super(RuntimeEndpoint, self).__init__()
        self.base_url, self.api_key, self.verify = client.url, None, None
        self.model_info = client.call(protocol.model_info())
        self.chat_template = get_chat_template_by_model_path(self.model_info["model_path"])
        self.turns: list[Turn] = []
        self.branches: list[AgentExecutor] = []
        self.cancelled = False
        self._client, self._trunk, self._agent = client, trunk, agent
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._on_text = on_text or (lambda _: None)
        self.on_write = on_write or (lambda _: None)

    def generate(self, s: AgentExecutor, sampling_params: SglSamplingParams) -> tuple[str, dict[str, Any]]:
        stop = sampling_params.stop or ()
        sampling_params.stop = [stop] if isinstance(stop, str) else list(stop)  # a dtype adds to it in place
        self._handle_dtype_to_regex(sampling_params)
        self._check(s)
        s.write()

        def say(piece: str) -> None:
            if self.cancelled:  # after the check
                s.session.cancel()
            self._on_text(piece)

        turn = s.session.generate(
            self._agent,
            sampling={
                "skip_special_tokens": global_config.skip_special_tokens_in_output,
                "spaces_between_special_tokens": global_config.spaces_between_special_tokens_in_out,
                **sampling_params.to_srt_kwargs(),
            },
            options={name: value for name in LOGPROB_OPTIONS if (value := getattr(sampling_params, name)) is not None},
            timeout=None if self._deadline is None else max(0.0, self._deadline - time.monotonic()),
            on_text=say,
        )
        s.said(turn.text)
        self.turns.append(turn)
        return turn.text, dict(turn.meta_info)

    def select(
        self, s: AgentExecutor, choices: Sequence[str], temperature: float, choices_method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        if temperature > 1e-5:
            raise ProgramError("select(temperature=…) would sample: it takes the likeliest choice, so leave it at 0.")
        self._check(s)
        s.write()
        scored = s.session.score(self._agent, choices)
        unconditional = None
        if choices_method.requires_unconditional_logprobs:
            alone = [turn.output_ids for turn in scored]
            answers = self._client.call(protocol.score(alone, self._agent, return_logprob=True, logprob_start_len=0))
            unconditional = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
        decision = choices_method(
            choices=choices,
            normalized_prompt_logprobs=[mean_logprob(turn) for turn in scored],
            input_token_logprobs=[turn.meta_info["input_token_logprobs"] for turn in scored],
            output_token_logprobs=[[] for _ in scored],
            unconditional_token_logprobs=unconditional,
        )
        turn = scored[list(choices).index(decision.decision)]
        s.session.accept(turn)
        s.said(turn.text)
        self.turns.append(turn)
        self._on_text(turn.text)
        return decision

    def commit_lazy_operations(self, s: AgentExecutor) -> None:
        """Compute what forks will share, once."""
        s.write()
        if s.session.ids:
            self._client.call(protocol.score(s.session.ids, self._agent))

    def join(self) -> None:
        """Wait for the forks that the program did not join; raise the first error of any."""
        for branch in self.branches:
            branch.end()
            branch.worker.join()
            if branch.error_ is not None:
                raise branch.error_

    def cancel(self) -> None:
        """From any thread: end what is being generated, and begin nothing more."""
        self.cancelled = True
        for session in (self._trunk, *(branch.session for branch in self.branches)):
            session.cancel()

    def wait(self) -> None:
        """After `cancel`: wait until no fork runs any more."""
        for branch in self.branches:
            branch.end()
            branch.worker.join()

    def _check(self, s: AgentExecutor) -> None:
        if self.cancelled:
            raise TurnCancelled("The program was cancelled.", Answer(s.session.ids, self._agent).turn())


class AgentExecutor(StreamExecutor):
    """SGLang's interpreter of one state, whose text is also a session's ids. Errors are raised where they matter."""

    error_: Exception | None

    def __init__(
        self,
        endpoint: AgentEndpoint,
        arguments: Mapping[str, Any],
        defaults: SglSamplingParams,
        session: Session,
        use_thread: bool,
    ) -> None:
        self.session = session
        self._fork_length = len(session)
        self._in_session = 0  # so many characters of text_ are in the session
        super().__init__(endpoint, arguments, defaults, None, stream=False, use_thread=use_thread)

    def write(self) -> None:
        """Have the session take what the program wrote since the model was last asked."""
        if new := self.text_[self._in_session :]:
            self.session.append(new)
            self._in_session += len(new)
            self.backend.on_write(new)

    def said(self, text: str) -> None:
        """The session has `text`, which the interpreter is about to add to text_."""
        self._in_session += len(text)

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> list[AgentExecutor]:
        """As upstream's, each fork with a fork of the session."""
        self.sync()
        self.write()
        if size > 1:
            self.backend.commit_lazy_operations(self)
        forks = []
        for session in self.session.fork(size):
            fork = AgentExecutor(self.backend, self.arguments, self.default_sampling_para, session, use_thread=True)
            fork.variables, fork.messages_ = dict(self.variables), list(self.messages_)
            fork.cur_role, fork.cur_role_begin_pos = self.cur_role, self.cur_role_begin_pos
            fork.text_ = self.text_
            fork.fork_start_text_pos = fork._in_session = len(self.text_)
            forks.append(fork)
        self.backend.branches.extend(forks)
        return forks

    def sync(self) -> None:
        super().sync()
        if self.error_ is not None:
            raise self.error_

    def error(self) -> Exception | None:
        super().sync()
        return self.error_

    def get_var(self, name: str) -> Any:
        if name in self.variable_event:
            self.variable_event[name].wait()
            if self.error_ is not None and name not in self.variables:
                raise self.error_
        return self.variables[name]

    def _thread_worker_func(self) -> None:
        """As upstream's, but work that comes after an error is taken off the queue too: nobody waits for it in vain."""
        while (expression := self.queue.get()) is not None:
            if self.error_ is None:
                try:
                    self._execute(expression)
                except Exception as error:
                    self.error_ = error
            if self.error_ is not None:
                for event in list(self.variable_event.values()):
                    event.set()
            self.queue.task_done()
        self.queue.task_done()
        self.is_finished = True

    def _execute_concatenate_and_append_text(self, expression: SglConcateAndAppend) -> None:
        self.write()
        for state in expression.states:
            fork = state.stream_executor
            fork.sync()
            fork.write()
            self.session.append_ids(fork.session.ids[fork._fork_length :])
            text = fork.text_[fork.fork_start_text_pos :]
            self.said(text)
            self.text_ += text

    def _execute_image(self, expression: Any) -> None:
        raise ProgramError("The program shows an image, and agents read token ids alone: leave image() out.")

    def _execute_video(self, expression: Any) -> None:
        raise ProgramError("The program shows a video, and agents read token ids alone: leave video() out.")

    def _execute_separate_reasoning(self, expression: Any) -> None:
        raise ProgramError("separate_reasoning() takes back what was said, and a trajectory only grows: leave it out.")
