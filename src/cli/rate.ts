/**
 * How fast a download goes and how long it will take. Says nothing until it has seen enough to be honest,
 * counts only what came in this run, and does not change its mind more often than people can read.
 */
const WARM_UP_MS = 10_000;
const WARM_UP_BYTES = 32 * 1024 * 1024;
const HOLD_MS = 30_000;

export interface RateSample {
  /** Bytes there are, those of earlier runs included. */
  readonly doneBytes: number;
  readonly totalBytes: number;
}

export class Rate {
  readonly #now: () => number;
  #start: { readonly at: number; readonly bytes: number } | undefined;
  #lastBytes = 0;
  #shown: { readonly at: number; readonly seconds: number } | undefined;

  constructor(now: () => number = performance.now.bind(performance)) {
    this.#now = now;
  }

  /** Bytes a second and the time left; each undefined while unknown. */
  update({ doneBytes, totalBytes }: RateSample): {
    readonly bytesPerSecond: number | undefined;
    readonly left: string | undefined;
  } {
    const now = this.#now();
    // What came in vain counts as not having come.
    if (this.#start === undefined || doneBytes < this.#start.bytes) {
      this.#start = { at: now, bytes: doneBytes };
      this.#shown = undefined;
    }
    this.#lastBytes = doneBytes;
    const elapsedMs = now - this.#start.at;
    const newBytes = this.#lastBytes - this.#start.bytes;
    if (elapsedMs < 1000 || newBytes === 0) return { bytesPerSecond: undefined, left: undefined };
    const bytesPerSecond = (1000 * newBytes) / elapsedMs;
    const isWarm = elapsedMs >= WARM_UP_MS && newBytes >= WARM_UP_BYTES;
    if (!isWarm || doneBytes >= totalBytes) return { bytesPerSecond, left: undefined };
    if (this.#shown === undefined || now - this.#shown.at >= HOLD_MS) {
      this.#shown = { at: now, seconds: (totalBytes - doneBytes) / bytesPerSecond };
    }
    return { bytesPerSecond, left: durationText(this.#shown.seconds) };
  }
}

/** `7 min`, as precise as an estimate can be. */
export function durationText(seconds: number): string {
  if (seconds < 60) return "less than a minute";
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 24 ? `${hours} h` : "more than a day";
}
