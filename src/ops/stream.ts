/**
 * The order of work on one device. Operations are recorded into the open command list; `commit` hands
 * it over. Two events order host and device: the timeline, which lists signal and the host awaits, and
 * the gate, which the host opens when reads have arrived and lists await.
 *
 * Invariant: the host never awaits a point of the timeline behind a closed gate that only this thread can
 * open; `wait` refuses it, because such a wait would never end.
 */
import type { Buffers, KernelSpec, Params, ParamValues } from "../kernels/spec.ts";
import { type Binding, Commands } from "../native/commands.ts";
import type { Device, DeviceEvent } from "../native/device.ts";
import { assert, MferenceError } from "../util/errors.ts";

/** A point of the timeline: reached when everything recorded before it has run. */
export type Ticket = number;

/** A committed list with points `first .. last`, none of which counts as reached before `gate` is open. */
interface GatedList {
  readonly first: Ticket;
  readonly last: Ticket;
  readonly gate: number;
}

export class Stream {
  readonly device: Device;
  readonly #commands = new Commands();
  readonly #timeline: DeviceEvent;
  readonly #gate: DeviceEvent;
  #lastTicket = 0;
  #committedTicket = 0;
  /** Lists that a closed gate holds up, oldest first. */
  #gated: GatedList[] = [];
  #lastGate = 0;
  #openedGate = 0;
  #waitSeconds = 0;
  #observer: ((commands: Uint8Array) => void) | undefined;

  constructor(device: Device) {
    this.device = device;
    this.#timeline = device.createEvent();
    this.#gate = device.createEvent();
  }

  /** Seconds that the host has spent in native waits. */
  get waitSeconds(): number {
    return this.#waitSeconds;
  }

  /** Shows every committed list to `observer`: for tests that compare or replay command lists. */
  observe(observer: ((commands: Uint8Array) => void) | undefined): void {
    this.#observer = observer;
  }

  dispatch<B extends Buffers, P extends Params>(
    kernel: KernelSpec<B, P>,
    buffers: { readonly [K in keyof B]: Binding },
    params: ParamValues<P>,
  ): void {
    this.#commands.dispatch(kernel, buffers, params);
  }

  /** Records a point of the timeline. */
  signal(): Ticket {
    this.#lastTicket += 1;
    this.#commands.signal(this.#timeline, this.#lastTicket);
    return this.#lastTicket;
  }

  /** What is recorded from here on runs only after `openGate` of the returned number. */
  gate(): number {
    this.#lastGate += 1;
    this.#commands.wait(this.#gate, this.#lastGate);
    return this.#lastGate;
  }

  /** Lets the device past a gate; gates open in order. */
  openGate(gate: number): void {
    assert(gate === this.#openedGate + 1, `gate ${gate} opens after ${this.#openedGate}`);
    this.#openedGate = gate;
    while (this.#gated[0] !== undefined && this.#gated[0].gate <= gate) this.#gated.shift();
    this.device.signal(this.#gate, gate);
  }

  /** Hands the recorded commands to the device; returns before they have run. */
  commit(): void {
    if (this.#commands.count === 0) return;
    const { bytes } = this.#commands;
    this.#observer?.(bytes);
    this.device.submit(bytes);
    this.#commands.reset();
    const [first, last, gate] = [this.#committedTicket + 1, this.#lastTicket, this.#lastGate];
    if (gate > this.#openedGate) this.#gated.push({ first, last, gate });
    this.#committedTicket = last;
  }

  /** Blocks until the ticket's point has been reached; the gates of its list and before must be open. */
  wait(ticket: Ticket): void {
    const isHeldUp = this.#gated.some(({ first, last }) => first <= ticket && ticket <= last);
    assert(!isHeldUp, "waiting behind a closed gate would never end");
    const begin = performance.now();
    this.device.wait(this.#timeline, ticket);
    this.#waitSeconds += (performance.now() - begin) / 1000;
  }

  /** Commits and blocks until everything recorded so far has run. */
  flush(): void {
    const ticket = this.signal();
    this.commit();
    this.wait(ticket);
  }

  /**
   * Forgets what was recorded, opens every gate and blocks until no list runs, whether it ran, was
   * cancelled or failed; the device takes work again. What the lists computed is for nobody.
   *
   * @throws MferenceError "native.timeout"
   */
  abandon(): void {
    this.#commands.reset();
    this.#gated = [];
    this.#committedTicket = this.#lastTicket;
    if (this.#openedGate < this.#lastGate) {
      this.#openedGate = this.#lastGate;
      this.device.signal(this.#gate, this.#lastGate);
    }
    try {
      this.device.finish();
    } catch (error) {
      // Any other status says why lists did not run; they have ended all the same.
      if (error instanceof MferenceError && error.code === "native.timeout") throw error;
    }
    this.device.resume();
    // Points that were recorded but never handed over must not be awaited by anybody later.
    this.device.signal(this.#timeline, this.#lastTicket);
  }

  close(): void {
    this.device.destroyEvent(this.#timeline);
    this.device.destroyEvent(this.#gate);
  }
}
