/**
 * Renders a chat template that a model ships. Owns the bridge between lossless JSON and the Jinja
 * interpreter, and the limits under which foreign code runs: no files, no clock, a bounded number of
 * steps. Knows neither messages nor tokens.
 */
import { Environment, Interpreter, Template } from "@huggingface/jinja";
import { MferenceError, sentenceOf } from "../util/errors.ts";
import { JsonNumber, type JsonValue } from "./json.ts";

type JinjaValue = ReturnType<Environment["set"]>;
type JinjaClass<T> = new (value: T) => JinjaValue;

const TEMPLATE_CHARACTERS_MAX = 4 * 1024 * 1024;
const OUTPUT_CHARACTERS_MAX = 16 * 1024 * 1024;
const STEPS_MAX = 10_000_000;

/** The interpreter does not export its value classes; a value of each kind has them. */
const classes = captureClasses();

function captureClasses() {
  const environment = new Environment();
  const classOf = <T>(name: string, sample: unknown) =>
    environment.set(name, sample).constructor as unknown as JinjaClass<T>;
  return {
    integer: classOf<unknown>("integer", 1),
    float: classOf<unknown>("float", 0.5),
    object: classOf<Map<string, JinjaValue>>("object", {}),
    array: classOf<JinjaValue[]>("array", []),
  };
}

function stringValue(text: string): JinjaValue {
  return new Environment().set("text", text);
}

/** A number inside the interpreter that counts as its value and prints as its text. */
class ExactNumber {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  valueOf(): number {
    return Number(this.#text);
  }

  toString(): string {
    return this.#text;
  }

  toJSON(): unknown {
    return (JSON as unknown as { rawJSON(text: string): unknown }).rawJSON(this.#text);
  }
}

function numberValue(number: JsonNumber): JinjaValue {
  const plain = Number(number.text);
  if (Number.isSafeInteger(plain) && String(plain) === number.text) {
    return new classes.integer(plain);
  }
  const exact = new ExactNumber(number.text);
  const value = number.isInteger ? new classes.integer(exact) : new classes.float(exact);
  value.toString = () => number.text;
  return value;
}

/** A value for the interpreter: order of keys and text of numbers kept. */
function jinjaValue(value: JsonValue, environment: Environment): JinjaValue {
  if (value instanceof JsonNumber) return numberValue(value);
  if (Array.isArray(value)) {
    return new classes.array(value.map((item) => jinjaValue(item, environment)));
  }
  if (value instanceof Map) {
    const entries = [...value].map(
      ([key, member]) => [key, jinjaValue(member, environment)] as const,
    );
    return new classes.object(new Map(entries));
  }
  return environment.set(`value ${environment.variables.size}`, value);
}

class RaisedByTemplate extends Error {}

/** Statements that print nothing of their own; every other one is an expression and prints its value. */
const SILENT = new Set(
  "If For Set Macro Comment Break Continue FilterStatement CallStatement Print".split(" "),
);

type Node = { readonly type: string } & Record<string, unknown>;

/**
 * Wraps every expression that a template prints, so that a null prints as Python prints it: models were
 * trained on `None`, and the interpreter leaves nulls out.
 */
function markPrints(body: unknown): void {
  if (!Array.isArray(body)) return;
  for (const [index, node] of (body as Node[]).entries()) {
    if (!SILENT.has(node.type)) body[index] = { type: "Print", expression: node };
    for (const key of ["body", "alternate", "defaultBlock"]) markPrints(node[key]);
  }
}

class LimitedInterpreter extends Interpreter {
  readonly #stepsMax: number;
  #steps = 0;

  constructor(environment: Environment, stepsMax: number) {
    super(environment);
    this.#stepsMax = stepsMax;
  }

  override evaluate(...parameters: Parameters<Interpreter["evaluate"]>): JinjaValue {
    this.#steps += 1;
    if (this.#steps > this.#stepsMax) {
      throw new Error(`it takes more than ${this.#stepsMax} steps`);
    }
    const [statement, environment] = parameters;
    if (statement?.type !== "Print") return super.evaluate(statement, environment);
    const { expression } = statement as unknown as { expression: typeof statement };
    const printed = super.evaluate(expression, environment);
    return printed.type === "NullValue" ? stringValue("None") : printed;
  }
}

function createEnvironment(): Environment {
  const environment = new Environment();
  const globals = { true: true, false: false, none: null, True: true, False: false, None: null };
  for (const [name, value] of Object.entries(globals)) environment.set(name, value);
  environment.set("raise_exception", (sentence: unknown) => {
    throw new RaisedByTemplate(String(sentence));
  });
  environment.set("range", (first: number, last?: number, step = 1) => {
    const [start, stop] = last === undefined ? [0, first] : [first, last];
    const count = Math.max(0, Math.ceil((stop - start) / step));
    if (!Number.isFinite(count) || count > STEPS_MAX) throw new Error("its range is too long");
    return Array.from({ length: count }, (_, index) => start + index * step);
  });
  return environment;
}

/** A parsed template, to be rendered any number of times. */
export class ChatTemplate {
  readonly source: string;
  readonly #program: Template["parsed"];
  readonly #stepsMax: number;

  /** @throws MferenceError "text.template" */
  constructor(source: string, stepsMax = STEPS_MAX) {
    if (source.length > TEMPLATE_CHARACTERS_MAX) {
      throw new MferenceError(
        "text.template",
        `the chat template has ${source.length} characters, at most ${TEMPLATE_CHARACTERS_MAX} are accepted`,
      );
    }
    this.source = source;
    this.#stepsMax = stepsMax;
    try {
      this.#program = new Template(source).parsed;
      markPrints(this.#program.body);
    } catch (cause) {
      throw new MferenceError("text.template", `the chat template: ${sentenceOf(cause)}`, {
        cause,
      });
    }
  }

  /**
   * Renders with the given variables.
   *
   * @throws MferenceError "text.messages" when the template itself refuses the messages,
   * "text.template" when it cannot be run
   */
  render(variables: Readonly<Record<string, JsonValue>>): string {
    const environment = createEnvironment();
    const values = new Environment();
    for (const [name, value] of Object.entries(variables)) {
      environment.setVariable(name, jinjaValue(value, values));
    }
    let text: string;
    try {
      // A program's value is the text that it wrote.
      text = new LimitedInterpreter(environment, this.#stepsMax).run(this.#program).value as string;
    } catch (cause) {
      const sentence = sentenceOf(cause);
      if (cause instanceof RaisedByTemplate) {
        throw new MferenceError("text.messages", `the chat template refuses: ${sentence}`, {
          cause,
        });
      }
      throw new MferenceError("text.template", `the chat template: ${sentence}`, { cause });
    }
    if (text.length > OUTPUT_CHARACTERS_MAX) {
      throw new MferenceError(
        "text.template",
        `the rendered chat has ${text.length} characters, at most ${OUTPUT_CHARACTERS_MAX} are accepted`,
      );
    }
    return text;
  }
}
