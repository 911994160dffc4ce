/**
 * One word for each request, shared by the thread that asks and the thread that works: whether the request
 * waits, runs, is cancelled or has ended. Knows no device: who cancels passes what interrupts the work.
 *
 *   waiting --begin--> running --end--> ended          cancelled is final: `end` leaves it
 *      '--cancel--> cancelled <-- cancelling <--cancel-- running
 *
 * Invariant: work is interrupted only while its own request runs, because a request does not end while it
 * is being interrupted. So a late cancel never hits the request after it.
 */
const WAITING = 0;
const RUNNING = 1;
const CANCELLING = 2;
const CANCELLED = 3;
const ENDED = 4;

export class CancelWord {
  /** What the other thread makes its own `CancelWord` of. */
  readonly memory: SharedArrayBuffer;
  readonly #word: Int32Array;

  constructor(memory: SharedArrayBuffer = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT)) {
    this.memory = memory;
    this.#word = new Int32Array(memory);
  }

  /** Asks the request to end; `interrupt` is called if it runs. Does nothing once it has ended. */
  cancel(interrupt: () => void): void {
    if (Atomics.compareExchange(this.#word, 0, WAITING, CANCELLED) === WAITING) return;
    if (Atomics.compareExchange(this.#word, 0, RUNNING, CANCELLING) !== RUNNING) return;
    try {
      interrupt();
    } finally {
      Atomics.store(this.#word, 0, CANCELLED);
      Atomics.notify(this.#word, 0);
    }
  }

  begin(): void {
    Atomics.compareExchange(this.#word, 0, WAITING, RUNNING);
  }

  get isCancelled(): boolean {
    const state = Atomics.load(this.#word, 0);
    return state === CANCELLING || state === CANCELLED;
  }

  /** Returns when nobody is interrupting the request, nor will. */
  end(): void {
    while (Atomics.compareExchange(this.#word, 0, RUNNING, ENDED) === CANCELLING) {
      Atomics.wait(this.#word, 0, CANCELLING);
    }
  }
}
