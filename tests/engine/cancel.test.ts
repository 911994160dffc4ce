import { describe, expect, test } from "bun:test";
import { CancelWord } from "../../src/engine/cancel.ts";

/** Counts how often work was interrupted. */
function interrupts(): { readonly count: () => number; readonly interrupt: () => void } {
  let count = 0;
  return { count: () => count, interrupt: () => (count += 1) };
}

describe("a cancel word", () => {
  test("interrupts a request that runs, once", () => {
    const { count, interrupt } = interrupts();
    const word = new CancelWord();
    word.begin();
    expect(word.isCancelled).toBe(false);
    word.cancel(interrupt);
    word.cancel(interrupt);
    expect([word.isCancelled, count()]).toEqual([true, 1]);
    word.end();
    expect(word.isCancelled).toBe(true);
  });

  test("keeps a request that waits from running, and interrupts nothing", () => {
    const { count, interrupt } = interrupts();
    const word = new CancelWord();
    word.cancel(interrupt);
    word.begin();
    word.cancel(interrupt);
    expect([word.isCancelled, count()]).toEqual([true, 0]);
    word.end();
  });

  test("does nothing once the request has ended", () => {
    const { count, interrupt } = interrupts();
    const word = new CancelWord();
    word.begin();
    word.end();
    word.cancel(interrupt);
    expect([word.isCancelled, count()]).toEqual([false, 0]);
  });

  test("is seen while the interruption is under way, and stays if that fails", () => {
    const word = new CancelWord();
    word.begin();
    const failing = () =>
      word.cancel(() => {
        expect(new CancelWord(word.memory).isCancelled).toBe(true);
        throw new Error("no device");
      });
    expect(failing).toThrow("no device");
    expect(word.isCancelled).toBe(true);
    word.end();
  });

  test("holds the end of a request back until its interruption is over", async () => {
    const word = new CancelWord();
    word.begin();
    const source = `
      import { CancelWord } from ${JSON.stringify(Bun.resolveSync("../../src/engine/cancel.ts", import.meta.dir))};
      self.onmessage = ({ data }) => {
        const word = new CancelWord(data);
        postMessage("ending");
        word.end();
        postMessage("ended");
      };`;
    const url = URL.createObjectURL(new Blob([source], { type: "application/typescript" }));
    const worker = new Worker(url);
    const heard: string[] = [];
    const messages = new Promise<void>((resolve) => {
      worker.addEventListener("message", ({ data }: MessageEvent<string>) => {
        heard.push(data);
        if (data === "ended") resolve();
      });
    });
    const probe = new Int32Array(word.memory);
    word.cancel(() => {
      worker.postMessage(word.memory);
      // The other thread comes to wait for the word: then somebody is there to be woken.
      while (Atomics.notify(probe, 0) === 0) Bun.sleepSync(1);
      heard.push("interrupted");
    });
    await messages;
    worker.terminate();
    // What the worker said reaches this thread later than what it says itself.
    expect(heard).toEqual(["interrupted", "ending", "ended"]);
  });
});
