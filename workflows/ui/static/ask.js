/** The form: a question, and which graph of agents is to answer it. */

import { post } from "./api.js";
import { $, element, say } from "./dom.js";

/** onBegun gets the thread of each run that is begun here. */
export function asking(onBegun) {
  const form = $("ask");
  const question = $("question");
  const button = $("ask-button");
  const error = $("ask-error");
  let workflows = [];

  // Not `disabled`, which would take the focus away.
  const busy = (is) => (button.ariaDisabled = String(is));
  const chosen = () => workflows.find((one) => one.name === new FormData(form).get("workflow"));

  function about() {
    const workflow = chosen();
    if (!workflow) return;
    const agents = Object.entries(workflow.agents ?? {}).map(([name, adapter]) =>
      adapter === null ? `${name} (base model)` : adapter === name ? name : `${name} (${adapter})`,
    );
    const who = agents.length ? ` Agents: ${agents.join(", ")}.` : "";
    say($("about"), `${workflow.about ?? ""}${who}`);
  }

  form.addEventListener("change", about);

  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.ariaDisabled === "true") return;
    say(error, "");
    const workflow = chosen();
    if (!question.value.trim()) return say(error, "There is no question: write one above.");
    if (!workflow) return say(error, "There is no graph to choose: see what is said above about the server.");
    busy(true);
    try {
      const { thread } = await post("runs", { workflow: workflow.name, question: question.value.trim() });
      question.value = "";
      onBegun(thread);
    } catch (problem) {
      say(error, problem.message);
    } finally {
      busy(false);
    }
  });

  return {
    fail: (sentence) => say(error, sentence),

    show(setup) {
      say(error, "");
      workflows = setup.workflows ?? [];
      const choices = workflows.map(({ name, title }, place) => {
        const radio = element("input", { type: "radio", name: "workflow", value: name, checked: place === 0 });
        return element("label", { class: "choice", "data-workflow": name }, radio, element("span", {}, title ?? name));
      });
      $("workflows").replaceChildren($("workflows").firstElementChild, ...choices);
      about();

      const questions = (setup.questions ?? []).map((text) => {
        const take = element("button", { type: "button", class: "example", dir: "auto" }, text);
        take.addEventListener("click", () => {
          question.value = text;
          question.focus();
        });
        return element("li", {}, take);
      });
      $("questions").replaceChildren(...questions);
    },
  };
}
