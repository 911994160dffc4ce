/**
 * The common weights of a package as operands: the file is mapped once, read-only, and bound in as few
 * buffers as the device's largest buffer allows, cut between tensors. Nothing is copied.
 */
import type { FileRange, ResidentEntry } from "../format/resident.ts";
import type { Binding } from "../native/commands.ts";
import type { Buffer, Device, Memory } from "../native/device.ts";
import { MferenceError } from "../util/errors.ts";
import { alignUp } from "../util/units.ts";
import type { QuantTensor, Vector } from "./tensor.ts";

/** Pages and bytes of the mapped file that one buffer covers. */
export interface Region {
  readonly offset: number;
  readonly bytes: number;
}

export interface RegionLimits {
  readonly fileBytes: number;
  readonly pageBytes: number;
  readonly bufferBytesMax: number;
}

/** The bytes of the file that a tensor's three arrays span. */
function spanOf(entry: ResidentEntry): { begin: number; end: number } {
  const ranges = [entry, entry.scales, entry.biases].filter((range) => range !== undefined);
  return {
    begin: Math.min(...ranges.map((range) => range.offset)),
    end: Math.max(...ranges.map((range) => range.offset + range.bytes)),
  };
}

/**
 * Cuts a file into regions that each hold whole tensors and start at a page; neighbours may share one
 * page. Pure.
 *
 * @throws MferenceError "native.memory" when one tensor alone exceeds the device's largest buffer
 */
export function planRegions(entries: Iterable<ResidentEntry>, limits: RegionLimits): Region[] {
  const { fileBytes, pageBytes, bufferBytesMax } = limits;
  if (fileBytes <= bufferBytesMax) return [{ offset: 0, bytes: fileBytes }];
  const spans = [...entries].map(spanOf).toSorted((a, b) => a.begin - b.begin);
  const regions: Region[] = [];
  let begin = 0;
  let end = 0;
  for (const span of spans) {
    if (Math.max(end, span.end) - begin > bufferBytesMax) {
      if (end > begin) regions.push(regionOf(begin, end, limits));
      begin = Math.floor(span.begin / pageBytes) * pageBytes;
      end = 0;
    }
    if (span.end - begin > bufferBytesMax) {
      throw new MferenceError(
        "native.memory",
        `a tensor of ${span.end - span.begin} bytes exceeds the device's largest buffer of ${bufferBytesMax}`,
      );
    }
    // The arrays of tensors may lie between each other.
    end = Math.max(end, span.end);
  }
  regions.push(regionOf(begin, end, limits));
  return regions;
}

/** A region that ends with a page, where the file and the largest buffer allow it. */
function regionOf(begin: number, end: number, limits: RegionLimits): Region {
  const { fileBytes, pageBytes, bufferBytesMax } = limits;
  const rounded = Math.min(fileBytes, alignUp(end, pageBytes));
  return { offset: begin, bytes: (rounded - begin > bufferBytesMax ? end : rounded) - begin };
}

export interface WeightsFile {
  readonly path: string;
  readonly entries: ReadonlyMap<string, ResidentEntry>;
}

/** The common weights, by tensor name. */
export class Weights {
  readonly #device: Device;
  readonly #file: WeightsFile;
  readonly #memory: Memory;
  readonly #regions: { readonly region: Region; readonly buffer: Buffer }[] = [];

  constructor(device: Device, file: WeightsFile) {
    this.#device = device;
    this.#file = file;
    this.#memory = device.mapFile(file.path);
    try {
      this.#bindRegions();
    } catch (error) {
      this.close();
      throw error;
    }
  }

  get byteLength(): number {
    return this.#memory.byteLength;
  }

  /** A quantised matrix `[rows, columns]`. */
  matrix(name: string): QuantTensor {
    const entry = this.#entry(name);
    const [rows, columns] = entry.shape;
    if (entry.scales === undefined || entry.biases === undefined || entry.shape.length !== 2) {
      throw this.#unfit(name, "a quantised matrix");
    }
    return {
      codes: this.#bind(entry),
      scales: this.#bind(entry.scales),
      biases: this.#bind(entry.biases),
      rows: rows!,
      columns: columns!,
      bits: (8 * entry.bytes) / (rows! * columns!),
    };
  }

  /** BF16 values of any shape, in their order in the file. */
  vector(name: string): Vector {
    const entry = this.#entry(name);
    if (entry.dtype !== "BF16") throw this.#unfit(name, "BF16 values");
    return { ...this.#bind(entry), length: entry.bytes / 2 };
  }

  close(): void {
    for (const { buffer } of this.#regions) this.#device.destroyBuffer(buffer);
    this.#device.release(this.#memory);
  }

  #entry(name: string): ResidentEntry {
    const entry = this.#file.entries.get(name);
    if (entry === undefined) {
      throw new MferenceError(
        "format.index",
        `the package has no tensor ${name}: install it again`,
      );
    }
    return entry;
  }

  #unfit(name: string, wanted: string): MferenceError {
    const { dtype, shape } = this.#entry(name);
    return new MferenceError(
      "format.index",
      `tensor ${name} is ${dtype} [${shape.join(", ")}], expected ${wanted}`,
    );
  }

  #bindRegions(): void {
    const { pageBytes, bufferBytesMax } = this.#device.info;
    const fileBytes = this.#memory.byteLength;
    const limits = { fileBytes, pageBytes, bufferBytesMax };
    for (const region of planRegions(this.#file.entries.values(), limits)) {
      const buffer = this.#device.bindMemory(this.#memory, region.offset, region.bytes);
      this.#regions.push({ region, buffer });
    }
  }

  /** A range of the file in the buffer that covers it. */
  #bind({ offset, bytes }: FileRange): Binding {
    const found = this.#regions.find(
      ({ region }) => region.offset <= offset && offset + bytes <= region.offset + region.bytes,
    );
    if (found === undefined) {
      throw new MferenceError("format.index", `no buffer covers ${bytes} bytes at byte ${offset}`);
    }
    return { buffer: found.buffer, offset: offset - found.region.offset };
  }
}
