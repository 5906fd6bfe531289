/**
 * Reads experiments from YAML or JSON: the traffic file, serving.yaml and the entries of a bundle's
 * experiment log have the same fields (docs/traffic.md). Errors name source, line and field.
 */
import {
  type Experiment,
  findConflict,
  type Variant,
  type VariantTarget,
} from '../core/experiment.ts';
import { NAME_PATTERN, NAME_RULE } from '../core/names.ts';

const ENTRIES_MAX = 1_000;
const VARIANTS_MAX = 100;
const WEIGHT_MAX = 1e6;
const EXPERIMENT_FIELDS = ['name', 'salt', 'slot', 'variants', 'overrides'];
const VARIANT_FIELDS = ['name', 'weight', 'model', 'channel', 'version'];

/** A value of a document, as YamlNode and JsonNode read them. */
export interface FieldNode {
  fail(text: string): never;
  /** @throws CubeError for a field that is not known */
  fields(known: readonly string[]): ReadonlyMap<string, this>;
  entries(): ReadonlyMap<string, this>;
  items(): readonly this[];
  text(): string;
  string(): string;
  number(): number;
}

type Fields = ReadonlyMap<string, FieldNode>;

/**
 * @param model of all the experiments, which then name none; undefined: each names its own
 * @throws CubeError INVALID_ARGUMENT, also for experiments that cannot run together
 */
export function readExperiments(list: FieldNode | undefined, model?: string): Experiment[] {
  const nodes = readList(list);
  const experiments = nodes.map((node) => readExperiment(node, model));
  const conflict = findConflict(experiments);
  if (conflict !== undefined) nodes[conflict.index]?.fail(conflict.reason);
  return experiments;
}

/** The items of a list; none of a list that is missing. */
export function readList<N extends FieldNode>(list: N | undefined): readonly N[] {
  const nodes = list?.items() ?? [];
  if (nodes.length > ENTRIES_MAX) list?.fail(`expected at most ${ENTRIES_MAX} entries`);
  return nodes;
}

function readExperiment(node: FieldNode, model: string | undefined): Experiment {
  const fields = node.fields(
    model === undefined ? ['model', ...EXPERIMENT_FIELDS] : EXPERIMENT_FIELDS,
  );
  const name = readNameField(node, fields, 'name');
  const variants = readVariants(requireField(node, fields, 'variants'));
  const slot = fields.get('slot')?.text();
  if (slot === '') fields.get('slot')?.fail('expected the name of a slot');
  return {
    name,
    model: model ?? readNameField(node, fields, 'model'),
    salt: fields.get('salt')?.text() ?? name,
    ...(slot !== undefined && { slot }),
    variants,
    overrides: readOverrides(fields.get('overrides'), variants),
  };
}

function readVariants(list: FieldNode): Variant[] {
  const nodes = list.items();
  if (nodes.length < 2 || nodes.length > VARIANTS_MAX) {
    list.fail(`expected 2 to ${VARIANTS_MAX} variants`);
  }
  const variants = nodes.map(readVariant);
  requireDistinctNames(nodes, variants);
  if (!variants.some(({ weight }) => weight > 0)) list.fail('no variant has a weight above 0');
  return variants;
}

function readVariant(node: FieldNode): Variant {
  const fields = node.fields(VARIANT_FIELDS);
  const weightNode = requireField(node, fields, 'weight');
  const weight = weightNode.number();
  if (weight < 0 || weight > WEIGHT_MAX) weightNode.fail(`expected a number in 0..${WEIGHT_MAX}`);
  const name = readNameField(node, fields, 'name');
  return { name, weight, target: readTarget(node, fields, 'model') };
}

function readOverrides(
  node: FieldNode | undefined,
  variants: readonly Variant[],
): ReadonlyMap<string, string> {
  const overrides = new Map<string, string>();
  for (const [key, value] of node?.entries() ?? []) {
    const name = value.string();
    if (!variants.some((variant) => variant.name === name)) {
      value.fail(`expected one of ${variants.map((variant) => variant.name).join(', ')}`);
    }
    overrides.set(key, name);
  }
  return overrides;
}

/** What answers: a channel or a version, or another model. */
export function readTarget(node: FieldNode, fields: Fields, modelField: string): VariantTarget {
  const channel = readOptionalName(fields, 'channel');
  const version = readOptionalName(fields, 'version');
  if (channel !== undefined && version !== undefined) {
    node.fail('give a channel or a version, not both');
  }
  const model = readOptionalName(fields, modelField);
  return {
    ...(model !== undefined && { model }),
    ...(channel !== undefined && { channel }),
    ...(version !== undefined && { version }),
  };
}

export function requireDistinctNames(
  nodes: readonly FieldNode[],
  named: readonly { readonly name: string }[],
): void {
  const names = new Set<string>();
  named.forEach(({ name }, i) => {
    if (names.has(name)) nodes[i]?.fail(`the name ${name} is used twice`);
    names.add(name);
  });
}

export function requireField<N extends FieldNode>(
  node: N,
  fields: ReadonlyMap<string, N>,
  name: string,
): N {
  return fields.get(name) ?? node.fail(`${name} is missing`);
}

export function readNameField(node: FieldNode, fields: Fields, name: string): string {
  return checkName(requireField(node, fields, name));
}

function readOptionalName(fields: Fields, name: string): string | undefined {
  const node = fields.get(name);
  return node === undefined ? undefined : checkName(node);
}

function checkName(node: FieldNode): string {
  const text = node.text();
  return NAME_PATTERN.test(text) ? text : node.fail(`expected ${NAME_RULE}`);
}
