/** `mference install`: the bundled demo, a checkpoint of the catalogue, of a repository or of a folder. */
import path from "node:path";
import type { InstallProgress } from "../install/assemble.ts";
import type { Installed } from "../install/install.ts";
import type { Preview } from "../install/preview.ts";
import type { RemoteSource } from "../install/hub.ts";
import { env } from "../util/env.ts";
import { MferenceError } from "../util/errors.ts";
import { formatBytes, formatSeconds } from "../util/units.ts";
import { declareCommand } from "./command.ts";
import { EXIT, type ExitCode } from "./exit.ts";
import { installProgress } from "./load.ts";
import { outputArgs, type Values } from "./options.ts";
import { portion } from "./progress.ts";
import { Rate } from "./rate.ts";
import { withProgress, type WorkContext } from "./run.ts";

export const install = declareCommand({
  name: "install",
  description:
    "Install a model by its name, or a checkpoint in MLX layout. An install that was interrupted goes on.",
  args: {
    model: {
      type: "positional",
      required: false,
      description:
        '"demo" or "demo-..." for a bundled checkpoint, or a name that "mference models" lists',
    },
    source: {
      type: "string",
      valueHint: "folder or address",
      description: "install the checkpoint in this folder, or in this repository of the Hub",
    },
    "index-sha256": {
      type: "string",
      valueHint: "64 hex digits",
      description: "what the source's index must hash to",
    },
    name: {
      type: "string",
      valueHint: "name",
      description: "name of the installed model (default: the source's)",
    },
    plan: { type: "boolean", description: "only say what would be done" },
    offline: { type: "boolean", description: "do not use the network" },
    ...outputArgs,
  },
  run: runInstall,
});

export type InstallRequest =
  | { readonly kind: "demo"; readonly name: string }
  | {
      readonly kind: "folder";
      readonly source: string;
      readonly name: string;
      readonly indexSha256?: string;
    }
  | { readonly kind: "named"; readonly model: string; readonly name?: string }
  | {
      readonly kind: "repository";
      readonly name: string;
      readonly base: URL;
      readonly source: RemoteSource;
    };

/** Names of checkpoints that come with the program. */
const DEMO = /^demo(-|$)/i;

/**
 * What is to be installed.
 *
 * @throws MferenceError "usage.flag", "usage.value"
 */
export function readRequest(values: Values): InstallRequest {
  const { model, source, name } = values as { model?: string; source?: string; name?: string };
  const digest = values["index-sha256"] as string | undefined;
  if (digest !== undefined && !/^[0-9a-f]{64}$/i.test(digest)) {
    throw new MferenceError("usage.value", `--index-sha256 must be 64 hex digits, not "${digest}"`);
  }
  const indexSha256 = digest === undefined ? {} : { indexSha256: digest.toLowerCase() };
  if (model !== undefined && source !== undefined) {
    throw new MferenceError("usage.flag", `give either "${model}" or --source, not both`);
  }
  if (source !== undefined && /^https?:/i.test(source)) {
    const address = readAddress(source);
    const given = name === undefined ? {} : { name };
    return { ...address, ...given, source: { ...address.source, ...indexSha256 } };
  }
  if (source !== undefined) {
    const resolved = path.resolve(source);
    const chosen = name ?? path.basename(resolved);
    return { kind: "folder", source: resolved, name: chosen, ...indexSha256 };
  }
  if (model === undefined) {
    throw new MferenceError(
      "usage.value",
      'say what to install: "demo", a name that "mference models" lists, or --source FOLDER',
    );
  }
  if (digest !== undefined) {
    throw new MferenceError("usage.flag", "--index-sha256 goes with --source");
  }
  if (!DEMO.test(model)) {
    return { kind: "named", model, ...(name === undefined ? {} : { name }) };
  }
  if (name === undefined) return { kind: "demo", name: model.toLowerCase() };
  throw new MferenceError("usage.flag", "a demo has its name; --name goes with other models");
}

/** `https://huggingface.co/owner/name`, with `/tree/REVISION` behind it or not. */
function readAddress(address: string): Extract<InstallRequest, { kind: "repository" }> {
  const url = URL.parse(address);
  const match = /^((?:\/[^/]+)*?)\/([^/]+)\/([^/]+?)(?:\/tree\/([^/]+))?\/?$/.exec(
    url?.pathname ?? "",
  );
  if (url === null || match === null || url.search !== "" || url.hash !== "") {
    throw new MferenceError(
      "usage.value",
      `"${address}" is no address of a repository; expected https://HOST/OWNER/NAME, with /tree/REVISION behind it if need be`,
    );
  }
  const [, prefix = "", owner = "", name = "", revision = "main"] = match;
  const base = new URL(url.href);
  base.pathname = prefix === "" ? "/" : prefix;
  return { kind: "repository", name, base, source: { repository: `${owner}/${name}`, revision } };
}

async function runInstall(values: Values): Promise<ExitCode> {
  const request = readRequest(values);
  return await withProgress(values, async (context) => {
    const isJson = values["json"] === true;
    if (values["plan"] === true) return await showPlan(request, { ...context, values });
    const installed = await installRequest(request, { ...context, values });
    context.progress.done();
    const { terminal } = context;
    if (isJson) {
      terminal.out.write(`${JSON.stringify(installed)}\n`);
      return EXIT.ok;
    }
    const { name, directory, bytes, notice } = installed;
    terminal.out.write(`installed ${name}, ${formatBytes(bytes)}, in ${directory}\n`);
    if (notice !== undefined) terminal.err.write(`${notice}\n`);
    return EXIT.ok;
  });
}

type InstallContext = WorkContext & { readonly values: Values };

async function installRequest(
  request: InstallRequest,
  context: InstallContext,
): Promise<Installed> {
  const { signal, progress, terminal } = context;
  const options = {
    signal,
    onProgress: (at: InstallProgress) =>
      progress.update(installProgress(at.phase, at.doneBytes, at.totalBytes)),
  };
  switch (request.kind) {
    case "demo":
      return await (await import("../install/demo.ts")).installDemo({ ...request, ...options });
    case "folder": {
      const { installLocal } = await import("../install/install.ts");
      const installed = await installLocal({ ...request, ...options });
      warnUnknown(installed.modelId, context);
      return installed;
    }
    case "named": {
      const { pinNamed, installedPin } = await import("../install/catalogue.ts");
      const { pin, family, canRun } = pinNamed(request.model);
      const name = request.name ?? pin.name;
      const there = installedPin({ ...pin, name });
      if (there !== undefined) {
        terminal.err.write(`${name} is installed already\n`);
        return { name, ...there, family, modelId: pin.modelId, droppedCount: 0 };
      }
      if (!canRun) {
        terminal.err.write(`${pin.name} can be installed and verified, but not run yet\n`);
      }
      if (pin.remote.notice !== undefined) terminal.err.write(`${pin.remote.notice}\n`);
      const { hubBase } = await import("../install/address.ts");
      const { repository, revision } = pin.remote;
      const source = { repository, revision, indexSha256: pin.sourceSha256 };
      return await download({ name, base: hubBase(), source }, context);
    }
    case "repository": {
      const { hubBase } = await import("../install/address.ts");
      const base = hubBase(request.base.href);
      if (request.source.indexSha256 === undefined) {
        throw new MferenceError(
          "usage.flag",
          "a repository needs --index-sha256, so that what comes is what you mean; --plan shows the digest of what is there now",
        );
      }
      const installed = await download({ ...request, base }, context);
      warnUnknown(installed.modelId, context);
      return installed;
    }
  }
}

async function download(
  request: { readonly name: string; readonly base: URL; readonly source: RemoteSource },
  { signal, progress, terminal, values }: InstallContext,
): Promise<Installed> {
  const { installRemote } = await import("../install/remote.ts");
  const { HUB, tokenFor } = await import("../install/address.ts");
  const token = tokenFor(request.base);
  if (request.base.origin !== HUB) {
    const isKept = token === undefined && env("HF_TOKEN") !== undefined;
    terminal.err.write(
      `warning: downloading from ${request.base.origin}: the index is checked against its digest, the weights are what this server says${isKept ? "; it does not get HF_TOKEN" : ""}\n`,
    );
  }
  const rate = new Rate();
  const write = (line: string): void => terminal.out.write(line);
  const isJson = values["json"] === true;
  const emit = isJson ? eventWriter(write) : undefined;
  let shown = "";
  return await installRemote({
    ...request,
    token,
    isOffline: values["offline"] === true,
    signal,
    onProgress(at) {
      emit?.(at);
      shown = downloadText(request.name, at, rate);
      progress.update(shown);
    },
    onWait({ message }, ms) {
      const event = { event: "waiting", message, seconds: ms / 1000 };
      if (isJson) write(`${JSON.stringify(event)}\n`);
      progress.update(`${shown}; asking again in ${formatSeconds(ms / 1000)}: ${message}`);
    },
  });
}

/** `downloading x: 40% of 14.6 GB, 12.3 MB/s, about 12 min left`. */
export function downloadText(name: string, at: InstallProgress, rate: Rate): string {
  const { phase, doneBytes, totalBytes } = at;
  if (phase !== "downloading") return installProgress(phase, doneBytes, totalBytes);
  const { bytesPerSecond, left } = rate.update(at);
  const speed = bytesPerSecond === undefined ? "" : `, ${formatBytes(bytesPerSecond)}/s`;
  const rest = left === undefined ? "" : `, about ${left} left`;
  return `downloading ${name}: ${portion(doneBytes, totalBytes, formatBytes)}${speed}${rest}`;
}

const EVENT_MS = 1000;

/** Writes an object a line: each change of phase, and what goes on once a second. */
export function eventWriter(
  write: (line: string) => void,
  now: () => number = performance.now.bind(performance),
): (at: InstallProgress) => void {
  let phase = "";
  let writtenAt = 0;
  return (at) => {
    const isEnd = at.doneBytes === at.totalBytes;
    if (at.phase === phase && !isEnd && now() - writtenAt < EVENT_MS) return;
    phase = at.phase;
    writtenAt = now();
    write(`${JSON.stringify({ event: "progress", ...at })}\n`);
  };
}

function warnUnknown(modelId: string, { terminal, values }: InstallContext): void {
  if (modelId !== "unknown/snapshot" || values["quiet"] === true) return;
  terminal.err.write(
    "WARNING: this program knows nothing of this checkpoint; it is recorded as unknown/snapshot, and nobody has tried it\n",
  );
}

async function showPlan(request: InstallRequest, context: InstallContext): Promise<ExitCode> {
  const { terminal, progress, values } = context;
  const preview = await previewOf(request, context);
  progress.done();
  terminal.out.write(
    values["json"] === true ? `${JSON.stringify(preview)}\n` : previewText(preview),
  );
  return EXIT.ok;
}

async function previewOf(request: InstallRequest, context: InstallContext): Promise<Preview> {
  const { signal, progress, values } = context;
  const { previewLocal, previewRemote } = await import("../install/preview.ts");
  const { checkModelName } = await import("../install/home.ts");
  if ("name" in request) checkModelName(request.name);
  progress.update("reading the checkpoint's headers");
  if (request.kind === "folder") return await previewLocal(request.source, signal);
  if (request.kind === "demo") {
    const { withDemoSource } = await import("../install/demo.ts");
    return await withDemoSource(request.name, (folder) => previewLocal(folder, signal));
  }
  if (values["offline"] === true) {
    throw new MferenceError(
      "install.offline",
      "--offline forbids to read the checkpoint's headers",
    );
  }
  const { hubBase, tokenFor } = await import("../install/address.ts");
  const base = request.kind === "repository" ? hubBase(request.base.href) : hubBase();
  const options = { base, token: tokenFor(base), signal };
  if (request.kind === "repository") return await previewRemote(request.source, options);
  const { pinNamed } = await import("../install/catalogue.ts");
  const { remote, sourceSha256 } = pinNamed(request.model).pin;
  const source = { ...remote, indexSha256: sourceSha256 };
  return await previewRemote(source, options);
}

/** A plan for people. */
export function previewText(preview: Preview): string {
  const { modelId, family, commit, rangeCount, sourceBytes, gapBytes, outputBytes } = preview;
  const lines = [
    `${modelId}, family ${family}${commit === undefined ? "" : `, commit ${commit}`}`,
    `index ${preview.sourceSha256}`,
    `${rangeCount} ranges, ${sourceBytes} bytes (${formatBytes(sourceBytes)}), ${gapBytes} of them between tensors`,
    `${preview.outputs.length} files, ${outputBytes} bytes (${formatBytes(outputBytes)}), ${preview.strideBytes} for each expert`,
    `${preview.residentCount} common tensors, ${preview.droppedCount} left out`,
    ...preview.outputs.map(({ path: file, bytes }) => `  ${file}  ${bytes}`),
    ...preview.places.map(
      ({ name, file, offset, bytes, strideBytes }) =>
        `${name} -> ${file} at ${offset}, ${bytes} bytes${strideBytes === undefined ? "" : `, every ${strideBytes}`}`,
    ),
  ];
  return `${lines.join("\n")}\n`;
}
