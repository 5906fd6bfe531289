/**
 * Reads the traffic file: experiments and shadows (docs/traffic.md). Errors name file, line and
 * field. JSON Schema: docs/schemas/traffic.schema.json.
 */
import type { Experiment } from '../../lib/core/experiment.ts';
import type { Shadow, ShadowTarget } from '../../lib/core/shadow.ts';
import {
  readExperiments,
  readList,
  readNameField,
  readTarget,
  requireDistinctNames,
  requireField,
} from '../../lib/platform/experiment-fields.ts';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml.ts';
import { Credentials } from '../../lib/rpc/credentials.ts';

const FILE_BYTES_MAX = 4 << 20;
const TIMEOUT_MS_DEFAULT = 1_000;
const TIMEOUT_MS_MAX = 600_000;
const SHADOW_FIELDS = [
  'name',
  'model',
  'share',
  'channel',
  'version',
  'target-model',
  'endpoint',
  'api-key-file',
  'tls-ca',
  'timeout-ms',
];

export interface TrafficSettings {
  readonly experiments: readonly Experiment[];
  readonly shadows: readonly Shadow[];
}

/** The fields of experiments and shadows, which the traffic file and serving.yaml have. */
export const TRAFFIC_FIELDS = ['experiments', 'shadows'] as const;

/** @throws CubeError with file, line and column; NOT_FOUND, TOO_LARGE */
export function readTrafficFile(path: string): TrafficSettings {
  return parseTraffic(readText(path, FILE_BYTES_MAX), path);
}

/** @param path the file's name in errors */
export function parseTraffic(text: string, path: string): TrafficSettings {
  return readTraffic(parseYaml(text, path).fields(TRAFFIC_FIELDS));
}

export function readTraffic(fields: ReadonlyMap<string, YamlNode>): TrafficSettings {
  const experiments = readExperiments(fields.get('experiments'));
  const shadowNodes = readList(fields.get('shadows'));
  const shadows = shadowNodes.map(readShadow);
  requireDistinctNames(shadowNodes, shadows);
  return { experiments, shadows };
}

function readShadow(node: YamlNode): Shadow {
  const fields = node.fields(SHADOW_FIELDS);
  const shareNode = requireField(node, fields, 'share');
  const share = shareNode.number();
  if (share < 0 || share > 1) shareNode.fail('expected a number in 0..1');
  const endpoint = fields.get('endpoint')?.parse(parseUrl);
  const target = {
    ...readTarget(node, fields, 'target-model'),
    ...(endpoint !== undefined && { endpoint }),
    ...readCredentials(fields, endpoint),
  };
  if (Object.keys(target).length === 0) {
    node.fail('the shadow needs a channel, a version, a target-model or an endpoint');
  }
  return {
    name: readNameField(node, fields, 'name'),
    model: readNameField(node, fields, 'model'),
    share,
    target,
    timeoutMs: fields.get('timeout-ms')?.integer(1, TIMEOUT_MS_MAX) ?? TIMEOUT_MS_DEFAULT,
  };
}

/** Reads the files once, so that a wrong path is an error of the traffic file. */
function readCredentials(
  fields: ReadonlyMap<string, YamlNode>,
  endpoint: string | undefined,
): Pick<ShadowTarget, 'apiKeyFile' | 'tlsCa'> {
  const apiKeyFile = fields.get('api-key-file');
  const tlsCa = fields.get('tls-ca');
  if (endpoint === undefined) {
    (apiKeyFile ?? tlsCa)?.fail('is only for a shadow with an endpoint');
  }
  if (tlsCa !== undefined && endpoint?.toLowerCase().startsWith('http:')) {
    tlsCa.fail('expected an endpoint that begins with https://');
  }
  for (const node of [apiKeyFile, tlsCa]) {
    node?.parse((path) => {
      new Credentials(node === tlsCa ? { tls: { ca: path } } : { tokenFile: path });
    });
  }
  return {
    ...(apiKeyFile !== undefined && { apiKeyFile: apiKeyFile.string() }),
    ...(tlsCa !== undefined && { tlsCa: tlsCa.string() }),
  };
}

/** @throws Error for anything but the address of a server */
function parseUrl(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isHttp = url?.protocol === 'http:' || url?.protocol === 'https:';
  if (isHttp && url.username === '' && url.password === '' && url.search === '') return text;
  throw new Error('expected http://host:port or https://host:port');
}
