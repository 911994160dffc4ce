import { afterAll, describe, expect, test } from "bun:test";
import { KvCache } from "../../src/kv/cache.ts";
import { recurrentBytes, RecurrentStates, SNAPSHOTS_MAX } from "../../src/kv/recurrent.ts";
import { Device } from "../../src/native/device.ts";
import { library } from "../golden/library.ts";

const device = new Device({ library, threads: 1 });
afterAll(() => device.close());

const SHAPE = { tailRows: 3, channels: 5, heads: 2, valueDim: 4, keyDim: 16 };
const LAYERS = [SHAPE, undefined, SHAPE];

/** A state that a step changes as the device would: to one that tells which steps it has seen. */
function step(states: RecurrentStates, position: number, salt = 0): void {
  states.begin();
  const bytes = states.contents({ ...states.view(2).state });
  bytes[0] = position;
  bytes[1] = salt;
  states.settle(position);
}

const seen = (states: RecurrentStates): number[] => [
  ...states.contents(states.view(2).state).subarray(0, 2),
];

describe("the states of recurrent layers", () => {
  test("lie apart, aligned and zeroed, and are counted", () => {
    const states = new RecurrentStates(device, LAYERS);
    expect(recurrentBytes(LAYERS)).toBe(2 * (64 + 512));
    expect(states.byteLength).toBe(recurrentBytes(LAYERS));
    const places = [0, 2].flatMap((layer) => {
      const { tail, state } = states.view(layer);
      return [tail.offset, state.offset];
    });
    expect(places).toEqual([0, 64, 576, 640]);
    expect(states.contents(states.view(0).tail).every((byte) => byte === 0)).toBe(true);
    expect(() => states.view(1)).toThrow("layer 1 is recurrent");
    states.close();
  });

  test("go back to what was kept, bit for bit, and on from there", () => {
    const states = new RecurrentStates(device, LAYERS);
    step(states, 5, 1);
    states.keep(true);
    step(states, 9, 2);
    expect(states.known(9)).toEqual([9, 5, 0]);
    expect(states.known(8)).toEqual([5, 0]);
    states.restore(5);
    expect(seen(states)).toEqual([5, 1]);
    expect(states.known(9)).toEqual([5, 0]);
    step(states, 6, 3);
    states.restore(0);
    expect([seen(states), states.known(9)]).toEqual([[0, 0], [0]]);
    states.close();
  });

  test("are unknown while the device may change them", () => {
    const states = new RecurrentStates(device, LAYERS);
    step(states, 4);
    states.begin();
    expect(states.known(9)).toEqual([0]);
    expect(() => states.keep(true)).toThrow("finished");
    states.close();
  });

  test("are kept at the newest turns and at the newest chunk of a prompt, in so many copies", () => {
    const states = new RecurrentStates(device, LAYERS);
    const keepAt = (position: number, isTurn: boolean): void => {
      step(states, position);
      states.keep(isTurn);
    };
    keepAt(10, true);
    keepAt(20, true);
    keepAt(30, false);
    keepAt(40, false);
    expect(states.known(100)).toEqual([40, 20, 10, 0]);
    keepAt(50, true);
    expect(states.known(100)).toEqual([50, 40, 20, 0]);
    keepAt(60, true);
    keepAt(61, false);
    expect(states.known(100)).toEqual([61, 60, 50, 0]);
    expect(states.byteLength).toBe((1 + SNAPSHOTS_MAX) * recurrentBytes(LAYERS));
    states.reset();
    expect(states.known(100)).toEqual([0]);
    states.close();
  });

  test("are not copied at the beginning, nor twice at one place", () => {
    const states = new RecurrentStates(device, LAYERS);
    states.keep(true);
    step(states, 3);
    states.keep(true);
    states.keep(false);
    expect(states.byteLength).toBe(2 * recurrentBytes(LAYERS));
    states.close();
  });
});

test("a cache with states goes back only to where rows and states are both known", () => {
  const window = { kvHeads: 1, headDim: 16, window: 8 };
  const layers = [window, undefined];
  const options = { layers, recurrent: [undefined, SHAPE], contextRows: 40, chunkRows: 4 };
  const cache = new KvCache(device, { ...options, dtype: "f32" });
  const write = (rows: number, isFirst: boolean): void => {
    cache.begin(rows, isFirst);
    cache.advance(rows);
    cache.settle();
  };
  write(4, true);
  for (let at = 4; at < 20; at += 4) write(4, false);
  write(1, true);
  // Kept at 16; the ring of 11 rows holds from 10 on, and position 17 sees from 10 on.
  expect([cache.restorable(21), cache.restorable(20), cache.restorable(15)]).toEqual([21, 0, 0]);
  cache.rewind(21);
  write(4, true);
  expect([cache.restorable(24), cache.restorable(25)]).toEqual([21, 25]);
  cache.rewind(21);
  expect([cache.cursor, cache.restorable(25)]).toEqual([21, 21]);
  cache.reset();
  expect([cache.cursor, cache.restorable(25)]).toEqual([0, 0]);
  expect(() => cache.view(1)).toThrow("layer 1 has keys and values");
  cache.close();
});
