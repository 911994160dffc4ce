import { MferenceError } from "../util/errors.ts";
import type { AnyFamily } from "../families/index.ts";
import type { ExpertSpec, Family, ResidentSpec, TensorRole } from "../families/family.ts";
import { checkResident, packageRules } from "../families/rules.ts";
import type { JsonValue } from "../format/json.ts";
import {
  checkSubTensors,
  packSubTensors,
  PROJECTIONS,
  strideOf,
  SUB_TENSOR_NAMES,
  type LayerLayout,
  type Layout,
  type Projection,
  type SubTensor,
  type SubTensorName,
  type SubTensors,
} from "../format/layout.ts";
import {
  QUANT_SLOTS,
  type Arch,
  type QuantSlot,
  type QuantSlotName,
  type QuantSlots,
} from "../format/manifest.ts";
import { residentTensors } from "../format/package.ts";
import { EXPERTS_FOLDER, layerFileName, WEIGHTS_FILE } from "../format/paths.ts";
import { isSameShape, type Quantization } from "../format/quant.ts";
import { placeResident, type ResidentIndex, type ResidentItem } from "../format/resident.ts";
import { checkHasWeight, isCompanion, matrixOf, type Matrix, type Part } from "./matrix.ts";
import type { ShardTensor } from "./source.ts";
import type { Transform } from "./transform.ts";

/**
 * What an install will write, decided before a byte moves: where every tensor of the checkpoint goes.
 * A pure function of headers and config.json, so that local and remote installs share it and tests can
 * read it. Nothing is converted; an expert's slice of a stacked tensor is the e-th equal part of it.
 */
export interface InstallPlan {
  readonly arch: Arch;
  readonly quant: QuantSlots;
  readonly resident: ResidentIndex;
  readonly layout: Layout;
  /** Every file that copies fill, sorted by path. */
  readonly outputs: readonly PlannedFile[];
  /** In the order of the outputs' bytes. */
  readonly copies: readonly Copy[];
  /** Of a family that has one. */
  readonly flashHead?: JsonValue;
  /** Multimodal tensors that stay behind. */
  readonly droppedCount: number;
}

/** A file of the package and its size. */
export interface PlannedFile {
  readonly path: string;
  readonly bytes: number;
}

/** Bytes that move from a shard to a file of the package. */
export interface Copy {
  readonly shard: string;
  readonly sourceOffset: number;
  /** In the shard; a transform makes more of them. */
  readonly bytes: number;
  readonly target: string;
  readonly targetOffset: number;
  readonly transform?: Transform;
}

/** What a plan is made from. */
export interface PlanInput {
  readonly family: AnyFamily;
  readonly config: JsonValue;
  readonly quantization: Quantization;
  readonly tensors: ReadonlyMap<string, ShardTensor>;
}

interface Placed {
  readonly matrix: Matrix;
  readonly role: Extract<TensorRole, { kind: "resident" }>;
}

type ExpertMatrices = Partial<Record<Projection, Matrix>>;

/**
 * Plans an install.
 *
 * @throws MferenceError "install.source" when tensors are missing, unknown or of another shape than
 * config.json says; "format.config" when config.json itself is at fault
 */
export function planInstall(input: PlanInput): InstallPlan {
  return planFor(input.family as Family<unknown>, input);
}

function planFor<Config>(family: Family<Config>, input: PlanInput): InstallPlan {
  const config = family.parseConfig(input.config);
  const arch = family.archOf(config);
  const { placed, experts, droppedCount } = classify(family, config, input);
  placed.sort(byPlace);
  const resident = placeResident(placed.map(({ matrix }) => residentItem(matrix)));
  const specs = family.tensors.resident(config);
  checkComplete(resident, specs, placed);
  const layout = planLayout(family, config, experts);
  const layerOutputs = layout.layers
    .filter((layer) => layer.subTensors !== undefined)
    .map((layer) => ({
      path: `${EXPERTS_FOLDER}/${layer.file}`,
      bytes: layout.strideBytes * layer.expertOffsets.length,
    }));
  const copies = [...residentCopies(placed, resident), ...expertCopies(layout, experts)];
  const weights = { path: WEIGHTS_FILE, bytes: resident.indexBytes + resident.residentBytes };
  const { quantization } = input;
  const fixed = family.quantSlots ?? {};
  const quant = quantSlots({ specs, placed, experts, quantization, fixed });
  const flashHead = family.flashHeadOf?.(config);
  // What loading would refuse is refused before gigabytes are copied.
  const rules = packageRules(family);
  rules.checkManifest({ arch, quant, flashHead });
  rules.checkContents({
    manifest: { arch, flashHead },
    config: input.config,
    resident: residentTensors(resident),
    layers: layout.layers,
  });
  return {
    arch,
    quant,
    resident,
    layout,
    outputs: [weights, ...layerOutputs],
    copies,
    droppedCount,
    ...(flashHead === undefined ? {} : { flashHead }),
  };
}

interface Classified {
  readonly placed: Placed[];
  readonly experts: ReadonlyMap<number, ExpertMatrices>;
  readonly droppedCount: number;
}

function classify<Config>(family: Family<Config>, config: Config, input: PlanInput): Classified {
  const matrices = { ...input, hasRowAlpha: family.tensors.hasRowAlpha === true };
  const placed: Placed[] = [];
  const experts = new Map<number, ExpertMatrices>();
  let droppedCount = 0;
  for (const tensor of input.tensors.values()) {
    const role = family.tensors.roleOf(tensor.name, config);
    if (role === undefined) {
      return fail(
        `the checkpoint holds ${tensor.name}, which is no tensor of the ${family.id} family`,
      );
    }
    if (role.kind === "dropped") {
      droppedCount += 1;
      continue;
    }
    if (isCompanion(tensor.name, matrices)) {
      checkHasWeight(tensor, matrices);
      continue;
    }
    const matrix = matrixOf(tensor, matrices, role.kind === "expert");
    if (role.kind === "resident") {
      placed.push({ matrix, role });
      continue;
    }
    const layer = experts.get(role.layer) ?? {};
    if (layer[role.projection] !== undefined) {
      fail(`layer ${role.layer} has two expert tensors for ${role.projection}`);
    }
    layer[role.projection] = matrix;
    experts.set(role.layer, layer);
  }
  return { placed, experts, droppedCount };
}

function byPlace(left: Placed, right: Placed): number {
  return (
    left.role.group - right.role.group ||
    left.role.layer - right.role.layer ||
    left.role.slot - right.role.slot ||
    (nameOf(left) < nameOf(right) ? -1 : 1)
  );
}

function nameOf({ matrix }: Placed): string {
  return matrix.weight.tensor.name;
}

function residentItem(matrix: Matrix): ResidentItem {
  const { weight, scales, biases, shape } = matrix;
  return {
    name: weight.tensor.name,
    dtype: weight.tensor.dtype,
    shape,
    bytes: weight.bytes,
    scaleBytes: scales?.bytes ?? 0,
    biasBytes: biases?.bytes ?? 0,
  };
}

/** The same checks that loading the package will make, so that no install succeeds in vain. */
function checkComplete(
  resident: ResidentIndex,
  specs: readonly ResidentSpec[],
  placed: readonly Placed[],
): void {
  const matrices = new Map(placed.map((item) => [nameOf(item), item.matrix]));
  for (const spec of specs) {
    const entry = resident.entries.get(spec.name);
    if (entry === undefined) return fail(`the checkpoint lacks the tensor ${spec.name}`);
    const bits = matrices.get(spec.name)?.bits;
    checkResident({ ...entry, ...(bits === undefined ? {} : { bits }) }, spec);
    matrices.delete(spec.name);
  }
  const extra = matrices.keys().next().value;
  if (extra !== undefined) fail(`the checkpoint holds ${extra}, for which the model has no use`);
}

function planLayout<Config>(
  family: Family<Config>,
  config: Config,
  experts: Classified["experts"],
): Layout {
  const { numLayers, numExperts } = family.archOf(config);
  const packed = Array.from({ length: numLayers }, (_, layer) => {
    const spec = family.tensors.experts(config, layer);
    const matrices = experts.get(layer);
    if (spec === undefined) {
      if (matrices !== undefined)
        fail(`layer ${layer} is dense, but the checkpoint holds experts for it`);
      return undefined;
    }
    return packSubTensors(expertParts(layer, { spec, matrices, numExperts }));
  });
  const strideBytes = strideOf(Math.max(0, ...packed.map((layer) => layer?.bytes ?? 0)));
  const expertOffsets = Array.from({ length: numExperts }, (_, expert) => expert * strideBytes);
  const layers: LayerLayout[] = [];
  for (const [index, layer] of packed.entries()) {
    const file = layerFileName(index);
    if (layer === undefined) {
      layers.push({ index, file, expertOffsets: [] });
      continue;
    }
    checkSubTensors(layer.table, { layer: index, strideBytes });
    layers.push({ index, file, expertOffsets, subTensors: layer.table });
  }
  return { strideBytes, expertCount: numExperts, layers };
}

type Parts = Record<SubTensorName, Omit<SubTensor, "offset">>;

function expertParts(
  layer: number,
  input: {
    readonly spec: ExpertSpec;
    readonly matrices: ExpertMatrices | undefined;
    readonly numExperts: number;
  },
): Parts {
  const entries = PROJECTIONS.flatMap(
    (projection): [SubTensorName, Omit<SubTensor, "offset">][] => {
      const matrix = input.matrices?.[projection];
      if (
        matrix?.scales === undefined ||
        matrix.biases === undefined ||
        matrix.bits === undefined
      ) {
        return fail(`layer ${layer} lacks quantized experts for ${projection}`);
      }
      const expected = [input.numExperts, ...input.spec.shapes[projection]];
      if (!isSameShape(matrix.shape, expected)) {
        fail(
          `${matrix.weight.tensor.name} has the shape [${matrix.shape.join(", ")}]; config.json says [${expected.join(", ")}]`,
        );
      }
      if (!input.spec.bits.includes(matrix.bits)) {
        fail(
          `${matrix.weight.tensor.name} has ${matrix.bits} bits; expected ${input.spec.bits.join(" or ")}`,
        );
      }
      const part = (stack: Part) => ({ bytes: slice(stack, input.numExperts) });
      const companionShape = matrix.scales.shape.slice(1);
      return [
        [
          projection,
          { ...part(matrix.weight), dtype: "U32", shape: matrix.shape.slice(1), bits: matrix.bits },
        ],
        [`${projection}_scales`, { ...part(matrix.scales), dtype: "BF16", shape: companionShape }],
        [`${projection}_biases`, { ...part(matrix.biases), dtype: "BF16", shape: companionShape }],
      ];
    },
  );
  return Object.fromEntries(entries) as Parts;
}

/** Bytes of one expert in a stacked tensor. */
function slice({ tensor, bytes }: Part, expertCount: number): number {
  if (tensor.bytes % expertCount !== 0) {
    fail(`${tensor.name} has ${tensor.bytes} bytes, which ${expertCount} experts cannot share`);
  }
  return bytes / expertCount;
}

function* residentCopies(placed: readonly Placed[], resident: ResidentIndex): Generator<Copy> {
  for (const { matrix } of placed) {
    const entry = resident.entries.get(matrix.weight.tensor.name)!;
    const parts = [
      [matrix.weight, entry],
      [matrix.scales, entry.scales],
      [matrix.biases, entry.biases],
    ] as const;
    for (const [part, range] of parts) {
      if (part === undefined || range === undefined) continue;
      const { tensor, transform } = part;
      yield {
        shard: tensor.shard,
        sourceOffset: tensor.offset,
        bytes: tensor.bytes,
        target: WEIGHTS_FILE,
        targetOffset: range.offset,
        ...(transform === undefined ? {} : { transform }),
      };
    }
  }
}

function* expertCopies(layout: Layout, experts: Classified["experts"]): Generator<Copy> {
  for (const layer of layout.layers) {
    const matrices = experts.get(layer.index);
    if (layer.subTensors === undefined || matrices === undefined) continue;
    const sources = subTensorSources(layer.subTensors, matrices);
    for (const [expert, expertOffset] of layer.expertOffsets.entries()) {
      for (const { stack, part } of sources) {
        const { tensor, transform } = stack;
        const bytes = tensor.bytes / layer.expertOffsets.length;
        yield {
          shard: tensor.shard,
          sourceOffset: tensor.offset + expert * bytes,
          bytes,
          target: `${EXPERTS_FOLDER}/${layer.file}`,
          targetOffset: expertOffset + part.offset,
          ...(transform === undefined ? {} : { transform }),
        };
      }
    }
  }
}

function subTensorSources(
  table: SubTensors,
  matrices: ExpertMatrices,
): readonly { readonly stack: Part; readonly part: SubTensor }[] {
  return SUB_TENSOR_NAMES.map((name) => {
    const [projection, companionName] = name.split("_") as [
      Projection,
      "scales" | "biases" | undefined,
    ];
    const stack = matrices[projection]![companionName ?? "weight"]!;
    return { stack, part: table[name] };
  });
}

/** What manifests say of a slot without a quantized matrix. */
const DEFAULT_WIDTHS = { embedding: 4, attention: 4, router: 8, sharedExpert: 8, routedExpert: 4 };

/** A summary for the manifest: the widths of the first matrix of each kind. */
function quantSlots(input: {
  readonly specs: readonly ResidentSpec[];
  readonly placed: readonly Placed[];
  readonly experts: Classified["experts"];
  readonly quantization: Quantization;
  readonly fixed: Partial<Record<QuantSlotName, QuantSlot>>;
}): QuantSlots {
  const matrices = new Map(input.placed.map((item) => [nameOf(item), item.matrix]));
  const widthOf = (slot: QuantSlotName): number | undefined => {
    if (slot === "routedExpert") return input.experts.values().next().value?.gate?.bits;
    const spec = input.specs.find((candidate) => candidate.slot === slot);
    return spec === undefined ? undefined : matrices.get(spec.name)?.bits;
  };
  const slots = QUANT_SLOTS.map((name): [QuantSlotName, QuantSlot] => [
    name,
    input.fixed[name] ?? {
      weightBits: widthOf(name) ?? DEFAULT_WIDTHS[name],
      scheme: "affine",
      scaleType: "BF16",
      biasType: "BF16",
      groupSize: input.quantization.groupSize,
    },
  ]);
  return Object.fromEntries(slots) as Record<QuantSlotName, QuantSlot>;
}

function fail(problem: string): never {
  throw new MferenceError("install.source", problem);
}
