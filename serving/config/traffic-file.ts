/**
 * Reads the traffic file: experiments and shadows (docs/traffic.md). Errors name file, line and
 * field. JSON Schema: docs/schemas/traffic.schema.json.
 */
import {
  type Experiment,
  hasTarget,
  type Variant,
  type VariantTarget,
} from '../../lib/core/experiment.ts';
import { NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import type { Shadow } from '../../lib/core/shadow.ts';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml.ts';

const FILE_BYTES_MAX = 4 << 20;
const ENTRIES_MAX = 1_000;
const TIMEOUT_MS_DEFAULT = 1_000;
const TIMEOUT_MS_MAX = 600_000;
const VARIANTS_MAX = 100;
const WEIGHT_MAX = 1e6;
const EXPERIMENT_FIELDS = ['name', 'model', 'salt', 'slot', 'variants', 'overrides'];
const SHADOW_FIELDS = [
  'name',
  'model',
  'share',
  'channel',
  'version',
  'target-model',
  'timeout-ms',
];
const VARIANT_FIELDS = ['name', 'weight', 'model', 'channel', 'version'];

type Fields = ReadonlyMap<string, YamlNode>;

export interface TrafficSettings {
  readonly experiments: readonly Experiment[];
  readonly shadows: readonly Shadow[];
}

/** @throws CubeError with file, line and column; NOT_FOUND, TOO_LARGE */
export function readTrafficFile(path: string): TrafficSettings {
  return parseTraffic(readText(path, FILE_BYTES_MAX), path);
}

/** @param path the file's name in errors */
export function parseTraffic(text: string, path: string): TrafficSettings {
  const fields = parseYaml(text, path).fields(['experiments', 'shadows']);
  const nodes = readList(fields, 'experiments');
  const experiments = nodes.map(readExperiment);
  checkTogether(nodes, experiments);
  const shadowNodes = readList(fields, 'shadows');
  const shadows = shadowNodes.map(readShadow);
  requireDistinctNames(shadowNodes, shadows);
  return { experiments, shadows };
}

function readList(fields: Fields, name: string): readonly YamlNode[] {
  const list = fields.get(name);
  const nodes = list?.items() ?? [];
  if (nodes.length > ENTRIES_MAX) list?.fail(`expected at most ${ENTRIES_MAX} entries`);
  return nodes;
}

function readShadow(node: YamlNode): Shadow {
  const fields = node.fields(SHADOW_FIELDS);
  const shareNode = require(node, fields, 'share');
  const share = shareNode.number();
  if (share < 0 || share > 1) shareNode.fail('expected a number in 0..1');
  const target = readTarget(node, fields, 'target-model');
  if (Object.keys(target).length === 0) {
    node.fail('the shadow needs a channel, a version or a target-model');
  }
  return {
    name: readName(node, fields, 'name'),
    model: readName(node, fields, 'model'),
    share,
    target,
    timeoutMs: fields.get('timeout-ms')?.integer(1, TIMEOUT_MS_MAX) ?? TIMEOUT_MS_DEFAULT,
  };
}

function readTarget(node: YamlNode, fields: Fields, modelField: string): VariantTarget {
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

function readExperiment(node: YamlNode): Experiment {
  const fields = node.fields(EXPERIMENT_FIELDS);
  const name = readName(node, fields, 'name');
  const variants = readVariants(require(node, fields, 'variants'));
  const slot = fields.get('slot')?.text();
  if (slot === '') fields.get('slot')?.fail('expected the name of a slot');
  return {
    name,
    model: readName(node, fields, 'model'),
    salt: fields.get('salt')?.text() ?? name,
    ...(slot !== undefined && { slot }),
    variants,
    overrides: readOverrides(fields.get('overrides'), variants),
  };
}

function readVariants(list: YamlNode): Variant[] {
  const nodes = list.items();
  if (nodes.length < 2 || nodes.length > VARIANTS_MAX) {
    list.fail(`expected 2 to ${VARIANTS_MAX} variants`);
  }
  const variants = nodes.map(readVariant);
  requireDistinctNames(nodes, variants);
  if (!variants.some(({ weight }) => weight > 0)) list.fail('no variant has a weight above 0');
  return variants;
}

function readVariant(node: YamlNode): Variant {
  const fields = node.fields(VARIANT_FIELDS);
  const weightNode = require(node, fields, 'weight');
  const weight = weightNode.number();
  if (weight < 0 || weight > WEIGHT_MAX) weightNode.fail(`expected a number in 0..${WEIGHT_MAX}`);
  const name = readName(node, fields, 'name');
  return { name, weight, target: readTarget(node, fields, 'model') };
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

/**
 * Names are unique, only one experiment decides which version answers a model's requests, and a
 * request has one key.
 */
function checkTogether(nodes: readonly YamlNode[], experiments: readonly Experiment[]): void {
  requireDistinctNames(nodes, experiments);
  requireOneSlot(nodes, experiments);
  const deciding = new Map<string, string>();
  experiments.forEach(({ name, model, variants }, i) => {
    const node = nodes[i] as YamlNode;
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

function requireOneSlot(nodes: readonly YamlNode[], experiments: readonly Experiment[]): void {
  const slots = new Map<string, string>();
  experiments.forEach(({ model, slot }, i) => {
    if (slot === undefined) return;
    const other = slots.get(model) ?? slot;
    if (other !== slot) {
      nodes[i]?.fail(
        `another experiment takes the keys of ${model} from slot ${other}: use the same slot`,
      );
    }
    slots.set(model, slot);
  });
}

function requireDistinctNames(
  nodes: readonly YamlNode[],
  named: readonly { readonly name: string }[],
): void {
  const names = new Set<string>();
  named.forEach(({ name }, i) => {
    if (names.has(name)) nodes[i]?.fail(`the name ${name} is used twice`);
    names.add(name);
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
