/**
 * JSON schemas in the form that Gemma's template can print: one type a node, no unions, every object
 * with its properties. Real clients send unions, nullable types and bare enums.
 */
import type { JsonObject, JsonValue } from "../../text/json.ts";
import { MferenceError } from "../../util/errors.ts";
import { isWritableKey } from "./tool-call.ts";

/**
 * A declaration whose parameters the template can print.
 *
 * @throws MferenceError "text.tools" for a parameter name that a call could not spell
 */
export function adaptTool(declaration: JsonObject): JsonObject {
  const definition = declaration.get("function");
  if (!(definition instanceof Map)) return declaration;
  const parameters = adaptSchema(definition.get("parameters") ?? new Map([["type", "object"]]));
  const described = new Map(definition);
  if (!described.has("description")) described.set("description", "");
  described.set("parameters", parameters);
  return new Map([...declaration, ["function", described] as const]);
}

/** One schema node; adapting it twice changes nothing. */
export function adaptSchema(schema: JsonValue): JsonObject {
  if (!(schema instanceof Map)) return new Map([["type", "string"]]);
  const node = resolveType(resolveUnion(resolveAll(schema)));
  const type = node.get("type");
  if (type === "object") node.set("properties", adaptProperties(node.get("properties") ?? null));
  if (type === "array" && node.has("items")) node.set("items", adaptSchema(node.get("items")!));
  return node;
}

function adaptProperties(properties: JsonValue): JsonObject {
  const adapted: JsonObject = new Map();
  if (!(properties instanceof Map)) return adapted;
  for (const [key, schema] of properties) {
    if (!isWritableKey(key)) {
      throw new MferenceError(
        "text.tools",
        `the parameter ${JSON.stringify(key)} has a name that the model cannot write: use letters, digits, _ - . $`,
      );
    }
    adapted.set(key, adaptSchema(schema));
  }
  return adapted;
}

/** Puts the branches of `allOf` together; earlier ones win, the node's own keys before all. */
function resolveAll(schema: JsonObject): JsonObject {
  const branches = schema.get("allOf");
  const node = new Map(schema);
  node.delete("allOf");
  if (!Array.isArray(branches)) return node;
  for (const branch of branches) {
    if (!(branch instanceof Map)) continue;
    for (const [key, value] of resolveAll(branch)) {
      const own = node.get(key);
      if (key === "properties" && own instanceof Map && value instanceof Map) {
        node.set(key, new Map([...value, ...own]));
      } else if (key === "required" && Array.isArray(own) && Array.isArray(value)) {
        node.set(key, [...new Set([...own, ...value])]);
      } else if (own === undefined) {
        node.set(key, value);
      }
    }
  }
  return node;
}

/** Takes the first branch of a union that is not null; constants become an enumeration. */
function resolveUnion(schema: JsonObject): JsonObject {
  const node = new Map(schema);
  const branches = node.get("anyOf") ?? node.get("oneOf");
  node.delete("anyOf");
  node.delete("oneOf");
  if (!Array.isArray(branches)) return node;
  const constants = branches.map((branch) => (branch instanceof Map ? branch.get("const") : null));
  if (branches.length > 0 && constants.every((constant) => typeof constant === "string")) {
    return new Map([...node, ["enum", constants] as const, ["type", "string"] as const]);
  }
  const resolved = branches.map((branch) => adaptSchema(branch));
  const chosen = resolved.find((branch) => branch.get("type") !== "null") ?? resolved[0];
  if (chosen === undefined) return node;
  const merged = resolveAll(new Map([...node, ["allOf", [chosen]] as const]));
  if (resolved.some((branch) => branch.get("type") === "null" && branch !== chosen)) {
    merged.set("nullable", true);
  }
  return merged;
}

/** Gives a node exactly one type. */
function resolveType(node: JsonObject): JsonObject {
  const type = node.get("type");
  if (Array.isArray(type)) {
    const names = type.filter((name) => typeof name === "string");
    node.set("type", names.find((name) => name !== "null") ?? names[0] ?? "string");
    if (names.includes("null") && names.length > 1) node.set("nullable", true);
  } else if (typeof type !== "string") {
    node.set("type", impliedType(node));
  }
  const constant = node.get("const");
  if (typeof constant === "string" && !node.has("enum")) node.set("enum", [constant]);
  return node;
}

function impliedType(node: JsonObject): string {
  if (node.has("properties")) return "object";
  return node.has("items") ? "array" : "string";
}
