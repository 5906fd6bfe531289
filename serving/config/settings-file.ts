/**
 * Reads serving.yaml: settings of the process and a list of models. Errors name file, line and
 * field. Paths are relative to the file's folder. JSON Schema: docs/schemas/serving.schema.json.
 */
import { dirname, resolve } from 'node:path';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml.ts';
import type { ServiceConfig, ServingSettings } from './serving-config.ts';
import type { Setting } from './setting-kinds.ts';
import * as kinds from './setting-kinds.ts';
import {
  MODEL_SETTINGS,
  type ModelSettings,
  PROCESS_SETTINGS,
  type ProcessSettings,
  toKebabCase,
} from './settings.ts';
import { readTraffic, TRAFFIC_FIELDS } from './traffic-file.ts';

const FILE_BYTES_MAX = 4 << 20;
const MODELS_MAX = 1_000;

/** @throws CubeError with file, line and column; NOT_FOUND, TOO_LARGE */
export function readSettingsFile(path: string): ServingSettings {
  return parseSettings(readText(path, FILE_BYTES_MAX), path);
}

/** @param path the file's name in errors; its folder is the base of relative paths */
export function parseSettings(text: string, path: string): ServingSettings {
  const root = parseYaml(text, path);
  const process = Object.keys(PROCESS_SETTINGS).map(toKebabCase);
  const fields = root.fields([...process, 'models', 'services', ...TRAFFIC_FIELDS]);
  const list = fields.get('models');
  if (list === undefined && !fields.has('model-repository')) {
    root.fail('models is missing; expected a list of models');
  }
  const models = list?.items() ?? [];
  if (list !== undefined && (models.length === 0 || models.length > MODELS_MAX)) {
    list.fail(`expected 1 to ${MODELS_MAX} models`);
  }
  const services = fields.get('services')?.items().map(readService);
  return {
    ...readTable<ProcessSettings>(fields, PROCESS_SETTINGS, path),
    models: models.map((node) => readModel(node, path)),
    ...(services !== undefined && { services }),
    ...(TRAFFIC_FIELDS.some((name) => fields.has(name)) && { traffic: readTraffic(fields) }),
  };
}

function readModel(node: YamlNode, path: string): ModelSettings {
  const fields = node.fields(Object.keys(MODEL_SETTINGS).map(toKebabCase));
  if (!['name', 'bundle', 'model'].some((field) => fields.has(field))) {
    node.fail('the model needs a name, a bundle or a model file');
  }
  return readTable<ModelSettings>(fields, MODEL_SETTINGS, path);
}

function readService(node: YamlNode): ServiceConfig {
  const fields = node.fields(['name', 'model']);
  const read = (field: string): string =>
    kinds.name.fromYaml(fields.get(field) ?? node.fail(`${field} is missing`));
  return { name: read('name'), model: read('model') };
}

function readTable<T>(
  fields: ReadonlyMap<string, YamlNode>,
  table: Readonly<Record<string, Setting<unknown>>>,
  path: string,
): T {
  const values: Record<string, unknown> = {};
  for (const [key, { kind, isPath }] of Object.entries(table)) {
    const node = fields.get(toKebabCase(key));
    if (node === undefined) continue;
    const value = kind.fromYaml(node);
    values[key] = isPath ? resolve(dirname(path), value as string) : value;
  }
  return values as T;
}
