/**
 * Ends a stream of visible text at the first of some strings. Owns the tail that may still become
 * one; knows no tokens.
 */
export class StopStrings {
  readonly #stops: readonly string[];
  #held = "";
  #hit: string | undefined;

  /** Empty strings are ignored. */
  constructor(stops: readonly string[]) {
    this.#stops = stops.filter((stop) => stop !== "");
  }

  /** The stop string that ended the text; nothing is returned after it. */
  get hit(): string | undefined {
    return this.#hit;
  }

  /** The text that is certain to precede any stop string. */
  push(text: string): string {
    if (this.#hit !== undefined) return "";
    if (this.#stops.length === 0) return text;
    const whole = this.#held + text;
    let at = Number.POSITIVE_INFINITY;
    for (const stop of this.#stops) {
      const found = whole.indexOf(stop);
      if (found >= 0 && found < at) {
        at = found;
        this.#hit = stop;
      }
    }
    const end = this.#hit === undefined ? whole.length - this.#tailLength(whole) : at;
    this.#held = this.#hit === undefined ? whole.slice(end) : "";
    return whole.slice(0, end);
  }

  /** The held tail, which did not become a stop string. */
  flush(): string {
    const rest = this.#held;
    this.#held = "";
    return rest;
  }

  /** Length of the longest suffix that is a proper prefix of a stop string. */
  #tailLength(text: string): number {
    const longest = Math.max(...this.#stops.map((stop) => stop.length)) - 1;
    for (let length = Math.min(longest, text.length); length > 0; length -= 1) {
      const tail = text.slice(-length);
      if (this.#stops.some((stop) => stop.length > length && stop.startsWith(tail))) return length;
    }
    return 0;
  }
}
