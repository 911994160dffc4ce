/** The engine's thread: takes calls one after another, and may block in native waits. */
import { MferenceError, sentenceOf } from "../util/errors.ts";
import { CancelWord } from "./cancel.ts";
import { Engine } from "./engine.ts";
import type { CallName, Calls, FromWorker, ToWorker } from "./protocol.ts";

declare const self: Worker;

let engine: Engine | undefined;
/** Calls run in the order of their arrival. */
let queue: Promise<void> = Promise.resolve();

const post = (message: FromWorker): void => self.postMessage(message);

function loaded(): Engine {
  if (engine === undefined) throw new MferenceError("engine.state", "no model is loaded");
  return engine;
}

function unload(): void {
  const closing = engine;
  engine = undefined;
  closing?.close();
}

const handlers: {
  [Name in CallName]: (
    request: Calls[Name]["request"],
    id: number,
  ) => Calls[Name]["answer"] | Promise<Calls[Name]["answer"]>;
} = {
  load: async (request) => {
    unload();
    engine = await Engine.load(request);
    return engine.info;
  },
  generate: async ({ request, cancel }, id) => {
    const word = new CancelWord(cancel);
    word.begin();
    try {
      return await loaded().generate(request, {
        onEvent: (event) => post({ kind: "event", id, event }),
        isCancelled: () => word.isCancelled,
      });
    } finally {
      word.end();
      // The device may have been interrupted when this request no longer used it.
      engine?.model.device.resume();
    }
  },
  tokenize: (prompt) => loaded().tokenize(prompt),
  render: (prompt) => loaded().render(prompt),
  detokenize: (ids) => loaded().detokenize(ids),
  reset: () => {
    loaded().reset();
    return null;
  },
  status: () => loaded().status(),
  close: () => {
    unload();
    return null;
  },
};

async function answer({ id, name, request }: ToWorker): Promise<void> {
  try {
    const handler = handlers[name] as (request: unknown, id: number) => unknown;
    post({ kind: "answer", id, answer: await handler(request, id) });
  } catch (error) {
    const code = error instanceof MferenceError ? error.code : undefined;
    post({ kind: "error", id, code, message: sentenceOf(error) });
  }
}

self.addEventListener("message", ({ data }: MessageEvent<ToWorker>) => {
  queue = queue.then(() => answer(data));
});
