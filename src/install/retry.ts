import { MferenceError } from "../util/errors.ts";

/**
 * Trying again: how often, and how long to wait. Knows no protocol but the one header in which a server
 * says when it wants to be asked again.
 */
export interface Clock {
  /** Milliseconds since 1970. */
  now(): number;
  /** Ends early, with the signal's reason, when the signal comes. */
  sleep(ms: number, signal: AbortSignal | undefined): Promise<void>;
  /** From 0 to 1, without 1. */
  random(): number;
}

export const systemClock: Clock = {
  now: Date.now,
  random: Math.random,
  async sleep(ms, signal) {
    signal?.throwIfAborted();
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => resolve(), { once: true });
    await promise;
    clearTimeout(timer);
    signal?.throwIfAborted();
  },
};

export interface RetryPolicy {
  /** In all, the first included. */
  readonly attempts: number;
  readonly baseMs: number;
  readonly clock: Clock;
  /** Told of each failure that is waited out. */
  readonly onWait?: ((failure: MferenceError, ms: number) => void) | undefined;
}

export const RETRY_POLICY: RetryPolicy = { attempts: 6, baseMs: 1000, clock: systemClock };

const DELAY_MS_MAX = 16_000;
const JITTER_MS = 250;
const RETRY_AFTER_S_MAX = 3600;

/** What an attempt came to: a value, or a failure that may pass. Any other failure is thrown. */
export type Attempt<T> =
  { readonly value: T } | { readonly again: MferenceError; readonly afterMs?: number | undefined };

/**
 * Tries until a value comes.
 *
 * @throws MferenceError the last failure, when the attempts are used up
 */
export async function retrying<T>(
  attempt: () => Promise<Attempt<T>>,
  policy: RetryPolicy,
  signal: AbortSignal | undefined,
): Promise<T> {
  const { clock } = policy;
  for (let count = 1; ; count += 1) {
    signal?.throwIfAborted();
    const outcome = await attempt();
    if ("value" in outcome) return outcome.value;
    const { again, afterMs = 0 } = outcome;
    if (count >= policy.attempts) {
      throw new MferenceError(again.code, `${again.message} (after ${count} attempts)`, {
        cause: again,
      });
    }
    const waitMs = Math.max(afterMs, delayMs(count, policy));
    policy.onWait?.(again, waitMs);
    await clock.sleep(waitMs, signal);
  }
}

/** Doubles with each attempt; the jitter keeps many clients from coming back at once. */
export function delayMs(failures: number, { baseMs, clock }: RetryPolicy): number {
  if (baseMs === 0) return 0;
  const delay = Math.min(baseMs * 2 ** (failures - 1), DELAY_MS_MAX);
  return delay + Math.floor(clock.random() * JITTER_MS);
}

/**
 * Milliseconds that a `Retry-After` header asks for: seconds, or a date.
 *
 * @throws MferenceError "install.network" when it asks for more than an hour, "install.remote" when it
 * is neither
 */
export function retryAfterMs(header: string | null, now: number): number | undefined {
  if (header === null) return undefined;
  const text = header.trim();
  const date = /[A-Za-z]/.test(text) ? Date.parse(text) : Number.NaN;
  const seconds = /^\d{1,15}$/.test(text) ? Number(text) : (date - now) / 1000;
  if (Number.isNaN(seconds)) {
    throw new MferenceError(
      "install.remote",
      `the server's Retry-After is ${JSON.stringify(text.slice(0, 60))}, neither seconds nor a date`,
    );
  }
  if (seconds > RETRY_AFTER_S_MAX) {
    throw new MferenceError(
      "install.network",
      `the server wants to be asked again in ${Math.ceil(seconds)} seconds; more than ${RETRY_AFTER_S_MAX} are not waited for: run the install again later, it goes on where it is`,
    );
  }
  return Math.max(0, seconds * 1000);
}
