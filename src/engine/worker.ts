/** The engine's thread: takes calls one after another, and may block in native waits. */
import { MferenceError, sentenceOf } from "../util/errors.ts";
import { Engine } from "./engine.ts";
import type { CallName, Calls, FromWorker, ToWorker } from "./protocol.ts";

declare const self: Worker;

type Call = Extract<ToWorker, { kind: "call" }>;

let engine: Engine | undefined;
let cancelled = new Int32Array(new SharedArrayBuffer(4));
/** Calls run in the order of their arrival. */
let queue: Promise<void> = Promise.resolve();

const post = (message: FromWorker): void => self.postMessage(message);

function loaded(): Engine {
  if (engine === undefined) throw new MferenceError("engine.state", "no model is loaded");
  return engine;
}

const handlers: {
  [Name in CallName]: (
    request: Calls[Name]["request"],
    id: number,
  ) => Calls[Name]["answer"] | Promise<Calls[Name]["answer"]>;
} = {
  load: async (request) => {
    engine?.close();
    engine = await Engine.load(request);
    return engine.info;
  },
  generate: async (request, id) => {
    const { model } = loaded();
    // A cancel of an earlier request may have arrived after its end.
    model.device.resume();
    return await loaded().generate(request, {
      onEvent: (event) => post({ kind: "event", id, event }),
      isCancelled: () => Atomics.load(cancelled, 0) >= id,
    });
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
    engine?.close();
    engine = undefined;
    return null;
  },
};

async function answer({ id, name, request }: Call): Promise<void> {
  try {
    const handler = handlers[name] as (request: unknown, id: number) => unknown;
    post({ kind: "answer", id, answer: await handler(request, id) });
  } catch (error) {
    const code = error instanceof MferenceError ? error.code : undefined;
    post({ kind: "error", id, code, message: sentenceOf(error) });
  }
}

self.addEventListener("message", ({ data }: MessageEvent<ToWorker>) => {
  if (data.kind === "start") {
    cancelled = new Int32Array(data.cancelled);
    post({ kind: "ready" });
    return;
  }
  queue = queue.then(() => answer(data));
});
