/** A terminal that remembers, and an engine that answers by script. */
import type { Answerer } from "../../src/cli/answer.ts";
import { createTerminal, type Output, type Terminal } from "../../src/cli/terminal.ts";
import type {
  GenerateEvent,
  GenerateRequest,
  GenerateResult,
  GenerateStats,
  Prompt,
  StopReason,
} from "../../src/engine/protocol.ts";

export interface FakeTerminal extends Terminal {
  readonly stdout: () => string;
  readonly stderr: () => string;
}

export function fakeTerminal(isTerminal = false): FakeTerminal {
  const texts = { out: "", err: "" };
  const output = (name: "out" | "err"): Output => ({
    isTerminal,
    write: (text) => {
      texts[name] += text;
    },
  });
  const terminal = createTerminal(output("out"), output("err"));
  return { ...terminal, stdout: () => texts.out, stderr: () => texts.err };
}

export const STATS: GenerateStats = {
  promptTokens: 20,
  cachedTokens: 4,
  prefillSeconds: 0.5,
  newTokens: 3,
  decodeSeconds: 0.1,
  firstTokenSeconds: 0.5,
  hits: 6,
  misses: 2,
  allHitLayers: 1,
  layers: 4,
  bytesRead: 1000,
  readSeconds: 0.01,
  deviceWaitSeconds: 0.02,
  peakMemoryBytes: 1_000_000,
};

export interface Reply {
  readonly events?: readonly GenerateEvent[];
  readonly reason?: StopReason;
  /** Ends only when it is cancelled. */
  readonly isEndless?: boolean;
  readonly error?: Error;
}

export interface FakeEngine extends Answerer {
  readonly requests: GenerateRequest[];
}

/** Answers requests with the replies in order; a prompt has a token for each character. */
export function fakeEngine(...replies: Reply[]): FakeEngine {
  const requests: GenerateRequest[] = [];
  return {
    requests,
    generate: async (request, handlers): Promise<GenerateResult> => {
      const { onEvent, signal } = handlers ?? {};
      requests.push(request);
      const reply = replies.shift();
      if (reply === undefined) throw new Error("the script has no more replies");
      if (reply.error !== undefined) throw reply.error;
      for (const event of reply.events ?? []) onEvent?.(event);
      if (reply.isEndless === true) await aborted(signal);
      const reason = reply.isEndless === true ? "cancelled" : (reply.reason ?? "endOfTurn");
      return { reason, ids: [1, 2, 3], stats: STATS };
    },
    tokenize: (prompt: Prompt) => {
      const text = prompt.kind === "chat" ? prompt.messages : "";
      return Promise.resolve(Array.from(text, () => 1));
    },
  };
}

async function aborted(signal: AbortSignal | undefined): Promise<void> {
  if (signal === undefined || signal.aborted) return;
  await new Promise((resolve) => {
    signal.addEventListener("abort", resolve, { once: true });
  });
}

/** An answer's text as the events that carry it. */
export function says(text: string): Reply {
  return {
    events: [
      { type: "prompt", tokens: 20, cached: 4 },
      { type: "token", id: 7 },
      { type: "content", text },
    ],
  };
}
