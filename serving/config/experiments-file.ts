/**
 * Reads the file of experiments (docs/experiments.md). Errors name file, line and field. JSON
 * Schema: docs/schemas/experiments.schema.json.
 */
import { type Experiment, hasTarget, type Variant } from '../../lib/core/experiment.ts';
import { NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml.ts';

const FILE_BYTES_MAX = 4 << 20;
const EXPERIMENTS_MAX = 1_000;
const VARIANTS_MAX = 100;
const WEIGHT_MAX = 1e6;
const EXPERIMENT_FIELDS = ['name', 'model', 'salt', 'variants', 'overrides'];
const VARIANT_FIELDS = ['name', 'weight', 'model', 'channel', 'version'];

type Fields = ReadonlyMap<string, YamlNode>;

/** @throws CubeError with file, line and column; NOT_FOUND, TOO_LARGE */
export function readExperimentsFile(path: string): readonly Experiment[] {
  return parseExperiments(readText(path, FILE_BYTES_MAX), path);
}

/** @param path the file's name in errors */
export function parseExperiments(text: string, path: string): readonly Experiment[] {
  const root = parseYaml(text, path);
  const list = root.fields(['experiments']).get('experiments');
  if (list === undefined) return root.fail('experiments is missing; expected a list');
  const nodes = list.items();
  if (nodes.length > EXPERIMENTS_MAX) list.fail(`expected at most ${EXPERIMENTS_MAX} experiments`);
  const experiments = nodes.map(readExperiment);
  checkTogether(nodes, experiments);
  return experiments;
}

function readExperiment(node: YamlNode): Experiment {
  const fields = node.fields(EXPERIMENT_FIELDS);
  const name = readName(node, fields, 'name');
  const variants = readVariants(require(node, fields, 'variants'));
  return {
    name,
    model: readName(node, fields, 'model'),
    salt: fields.get('salt')?.text() ?? name,
    variants,
    overrides: readOverrides(fields.get('overrides'), variants),
  };
}

function readVariants(list: YamlNode): Variant[] {
  const nodes = list.items();
  if (nodes.length < 2 || nodes.length > VARIANTS_MAX) {
    list.fail(`expected 2 to ${VARIANTS_MAX} variants`);
  }
  const names = new Set<string>();
  const variants = nodes.map((node) => {
    const variant = readVariant(node);
    if (names.has(variant.name)) node.fail(`the name ${variant.name} is used twice`);
    names.add(variant.name);
    return variant;
  });
  if (!variants.some(({ weight }) => weight > 0)) list.fail('no variant has a weight above 0');
  return variants;
}

function readVariant(node: YamlNode): Variant {
  const fields = node.fields(VARIANT_FIELDS);
  const weightNode = require(node, fields, 'weight');
  const weight = weightNode.number();
  if (weight < 0 || weight > WEIGHT_MAX) weightNode.fail(`expected a number in 0..${WEIGHT_MAX}`);
  const [channel, version] = [
    readOptionalName(fields, 'channel'),
    readOptionalName(fields, 'version'),
  ];
  if (channel !== undefined && version !== undefined) {
    node.fail('give a channel or a version, not both');
  }
  const model = readOptionalName(fields, 'model');
  return {
    name: readName(node, fields, 'name'),
    weight,
    target: {
      ...(model !== undefined && { model }),
      ...(channel !== undefined && { channel }),
      ...(version !== undefined && { version }),
    },
  };
}

function readOverrides(
  node: YamlNode | undefined,
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

/** Names are unique, and only one experiment decides which version answers a model's requests. */
function checkTogether(nodes: readonly YamlNode[], experiments: readonly Experiment[]): void {
  const names = new Set<string>();
  const deciding = new Map<string, string>();
  experiments.forEach(({ name, model, variants }, i) => {
    const node = nodes[i] as YamlNode;
    if (names.has(name)) node.fail(`the name ${name} is used twice`);
    names.add(name);
    if (!variants.some(hasTarget)) return;
    const other = deciding.get(model);
    if (other !== undefined) {
      node.fail(
        `${other} chooses the version of ${model} already: variants of other experiments of this ` +
          'model may have no model, channel or version',
      );
    }
    deciding.set(model, name);
  });
}

function require(node: YamlNode, fields: Fields, name: string): YamlNode {
  return fields.get(name) ?? node.fail(`${name} is missing`);
}

function readName(node: YamlNode, fields: Fields, name: string): string {
  return checkName(require(node, fields, name));
}

function readOptionalName(fields: Fields, name: string): string | undefined {
  const node = fields.get(name);
  return node === undefined ? undefined : checkName(node);
}

function checkName(node: YamlNode): string {
  const text = node.text();
  return NAME_PATTERN.test(text) ? text : node.fail(`expected ${NAME_RULE}`);
}
