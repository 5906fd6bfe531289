/**
 * Evaluates the kustomizations of deploy/ as kustomize does, where kustomize is not installed: the
 * features that they use, and nothing else. Other fields are errors, so that nothing is ignored.
 */
import assert from 'node:assert/strict';
import { readFileSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { parse, parseAllDocuments } from 'yaml';

/** A resource, or a part of one. */
// biome-ignore lint/suspicious/noExplicitAny: resources of any kind
export type Node = Record<string, any>;

interface Patch {
  readonly target: { readonly kind: string };
  /** YAML list of JSON Patch operations (RFC 6902). */
  readonly patch: string;
}

interface Operation {
  readonly op: string;
  readonly path: string;
  readonly from?: string;
  readonly value?: unknown;
}

interface Kustomization {
  readonly resources: readonly string[];
  readonly nameSuffix?: string;
  readonly labels?: readonly { pairs: Record<string, string>; includeSelectors: true }[];
  readonly configMapGenerator?: readonly { name: string; behavior: string; files: string[] }[];
  readonly generatorOptions?: { readonly disableNameSuffixHash: true };
  readonly replicas?: readonly { readonly name: string; readonly count: number }[];
  readonly patches?: readonly Patch[];
}

const FIELDS = [
  'apiVersion',
  'kind',
  'resources',
  'nameSuffix',
  'labels',
  'configMapGenerator',
  'generatorOptions',
  'replicas',
  'patches',
];

/** @returns the resources that `kubectl apply -k folder` sends */
export function evaluate(folder: string): Node[] {
  const file = join(folder, 'kustomization.yaml');
  const text = readFileSync(file, 'utf8');
  const kustomization = parse(text) as Kustomization;
  for (const field of Object.keys(kustomization))
    assert.ok(FIELDS.includes(field), `${file}: ${field}`);
  const resources = kustomization.resources.flatMap((path) => readResource(join(folder, path)));
  for (const map of kustomization.configMapGenerator ?? []) {
    assert.equal(map.behavior, 'replace');
    assert.equal(kustomization.generatorOptions?.disableNameSuffixHash, true);
    const target = find(resources, 'ConfigMap', map.name);
    target['data'] = Object.fromEntries(
      map.files.map((name) => [basename(name), readFileSync(join(folder, name), 'utf8')]),
    );
  }
  for (const patch of kustomization.patches ?? []) applyPatch(resources, patch);
  addSuffix(resources, kustomization.nameSuffix ?? '');
  for (const { pairs } of kustomization.labels ?? []) {
    for (const resource of resources) addLabels(resource, pairs);
  }
  for (const { name, count } of kustomization.replicas ?? []) {
    const workload = resources.find(
      (resource) => resource['metadata'].name === name && resource['spec']?.replicas !== undefined,
    );
    assert.ok(workload, `${file}: no workload ${name}`);
    workload['spec'].replicas = count;
  }
  return resources;
}

function readResource(path: string): Node[] {
  if (statSync(path).isDirectory()) return evaluate(path);
  // Kubernetes reads YAML 1.1, where 0440 is octal.
  return parseAllDocuments(readFileSync(path, 'utf8'), { version: '1.1' }).map((document) => {
    assert.deepEqual(document.errors, [], path);
    // Without aliases: a patch of one place must not change another.
    return JSON.parse(JSON.stringify(document.toJS())) as Node;
  });
}

function find(resources: readonly Node[], kind: string, name: string): Node {
  const found = resources.filter(
    (resource) => resource['kind'] === kind && resource['metadata'].name === name,
  );
  assert.equal(found.length, 1, `${kind} ${name}`);
  return found[0]!;
}

/** Names of resources and the references between them. */
function addSuffix(resources: readonly Node[], suffix: string): void {
  const services = resources
    .filter(({ kind }) => kind === 'Service')
    .map((service) => service['metadata'].name);
  for (const resource of resources) {
    const spec = resource['spec'];
    if (services.includes(spec?.serviceName)) spec.serviceName += suffix;
    resource['metadata'].name += suffix;
  }
}

function addLabels(resource: Node, pairs: Record<string, string>): void {
  const { spec } = resource;
  const add = (owner: Node | undefined, field: string): void => {
    if (owner !== undefined) owner[field] = { ...owner[field], ...pairs };
  };
  add(resource['metadata'], 'labels');
  if (resource['kind'] === 'Service') add(spec, 'selector');
  else add(spec?.selector, 'matchLabels');
  add(spec?.template?.metadata, 'labels');
  for (const claim of spec?.volumeClaimTemplates ?? []) add(claim.metadata, 'labels');
  for (const { labelSelector } of spec?.template?.spec.topologySpreadConstraints ?? []) {
    add(labelSelector, 'matchLabels');
  }
}

function applyPatch(resources: readonly Node[], { target, patch }: Patch): void {
  assert.deepEqual(Object.keys(target), ['kind']);
  const targets = resources.filter(({ kind }) => kind === target.kind);
  assert.ok(targets.length > 0, `no ${target.kind} to patch`);
  for (const resource of targets) {
    // Each target gets values of its own.
    for (const operation of parse(patch) as Operation[]) applyOperation(resource, operation);
  }
}

function applyOperation(resource: Node, { op, path, from, value }: Operation): void {
  const { owner, key } = resolvePointer(resource, path);
  if (op === 'test') assert.deepEqual(owner[key], value, path);
  else if (op === 'replace') {
    assert.ok(owner[key] !== undefined, `${path} does not exist`);
    owner[key] = value;
  } else if (op === 'add') insert(owner, key, value);
  else {
    assert.equal(op, 'copy');
    const source = resolvePointer(resource, from ?? '');
    insert(owner, key, JSON.parse(JSON.stringify(source.owner[source.key])));
  }
}

function insert(owner: Node, key: string, value: unknown): void {
  if (!Array.isArray(owner)) owner[key] = value;
  else owner.splice(key === '-' ? owner.length : Number(key), 0, value);
}

/** The object or list that a JSON Pointer leads to, and the last key. */
function resolvePointer(resource: Node, pointer: string): { owner: Node; key: string } {
  const keys = pointer.split('/').slice(1);
  const key = keys.pop() ?? '';
  const owner = keys.reduce<Node | undefined>((node, name) => node?.[name], resource);
  assert.ok(typeof owner === 'object', `${pointer} does not exist`);
  return { owner, key };
}
