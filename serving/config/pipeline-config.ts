/**
 * Reads a pipeline's config.yml as Pipeline Serving does, and says of every field what it does.
 * JSON Schema: docs/schemas/pipeline.schema.json. Paths are relative to the folder of the file.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml.ts';
import {
  DAG_FIELDS,
  type DagFields,
  type FieldEffect,
  LOCAL_SERVICE_FIELDS,
  type LocalServiceFields,
  OP_FIELDS,
  type OpFields,
  type PipelineField,
  type PipelineFields,
  SERVER_FIELDS,
  type ServerFields,
  says,
} from './pipeline-fields.ts';

const FILE_BYTES_MAX = 4 << 20;
const OPS_MAX = 1_000;

/** The settings of an op as given; defaults are not filled in, so that the op's own ones apply. */
export interface PipelineOpConfig extends OpFields {
  readonly local_service_conf?: LocalServiceFields;
}

/** Field names are those of the file. */
export interface PipelineConfig {
  readonly server: ServerFields;
  readonly dag: DagFields;
  /** Interval of the tracer in seconds; below 1: none. */
  readonly tracerIntervalS: number;
  readonly ops: ReadonlyMap<string, PipelineOpConfig>;
  /** Every field, also those that are not in the file. */
  readonly explanations: readonly FieldExplanation[];
}

export interface FieldExplanation extends FieldEffect {
  /** Path of the field, as `op.bow.timeout`. */
  readonly field: string;
  readonly value: unknown;
  /** File, line and column; undefined: the value is the default. */
  readonly location?: string;
}

/** @throws CubeError INVALID_ARGUMENT with file, line and column; NOT_FOUND, TOO_LARGE */
export function readPipelineConfig(path: string): PipelineConfig {
  return parsePipelineConfig(readText(path, FILE_BYTES_MAX), path);
}

/** @param name of the file in errors */
export function parsePipelineConfig(text: string, name: string): PipelineConfig {
  const root = parseYaml(text, name);
  const fields = withoutNulls(root.fields([...Object.keys(SERVER_FIELDS), 'dag', 'op']));
  const explanations: FieldExplanation[] = [];
  const server = readFields<ServerFields>(fields, SERVER_FIELDS, '', explanations);
  if (server.rpc_port === undefined && server.http_port === undefined) {
    root.fail('rpc_port and http_port are missing; give at least one of them');
  }
  const dagNode = fields.get('dag');
  const dagFields = withoutNulls(dagNode?.fields([...Object.keys(DAG_FIELDS), 'tracer']));
  const dag = readFields<DagFields>(dagFields, DAG_FIELDS, 'dag.', explanations);
  const tracer = withoutNulls(dagFields.get('tracer')?.fields(Object.keys(TRACER_FIELDS)));
  const { interval_s: tracerIntervalS = -1 } = readFields<TracerFields>(
    tracer,
    TRACER_FIELDS,
    'dag.tracer.',
    explanations,
  );
  const ops = readOps(fields.get('op'), explanations);
  return { server, dag, tracerIntervalS, ops, explanations };
}

interface TracerFields {
  interval_s?: number;
}

const TRACER_FIELDS: PipelineFields<TracerFields> = {
  interval_s: {
    read: (node) => node.integer(-1, 86_400),
    fallback: -1,
    explain: (seconds) =>
      seconds > 0
        ? says('honoured', 'seconds between reports in PipelineServingLogs/pipeline.tracer')
        : says('honoured', 'no tracer'),
  },
};

function readOps(
  node: YamlNode | undefined,
  explanations: FieldExplanation[],
): ReadonlyMap<string, PipelineOpConfig> {
  const ops = new Map<string, PipelineOpConfig>();
  const named = withoutNulls(node?.entries());
  if (named.size > OPS_MAX) node?.fail(`expected at most ${OPS_MAX} ops`);
  for (const [name, op] of named) {
    const fields = withoutNulls(op.fields([...Object.keys(OP_FIELDS), 'local_service_conf']));
    const own = readFields<OpFields>(fields, OP_FIELDS, `op.${name}.`, explanations);
    const local = fields.get('local_service_conf');
    if (local === undefined) {
      ops.set(name, own);
      continue;
    }
    const prefix = `op.${name}.local_service_conf.`;
    const localFields = withoutNulls(local.fields(Object.keys(LOCAL_SERVICE_FIELDS)));
    const conf = readFields<LocalServiceFields>(
      localFields,
      LOCAL_SERVICE_FIELDS,
      prefix,
      explanations,
    );
    ops.set(name, { ...own, local_service_conf: conf });
  }
  return ops;
}

/** Fields without a value count as not given, as in the original. */
function withoutNulls(
  fields: ReadonlyMap<string, YamlNode> | undefined,
): ReadonlyMap<string, YamlNode> {
  return new Map([...(fields ?? [])].filter(([, node]) => !node.isNull));
}

function readFields<T extends object>(
  nodes: ReadonlyMap<string, YamlNode>,
  table: PipelineFields<T>,
  prefix: string,
  explanations: FieldExplanation[],
): T {
  const values: Record<string, unknown> = {};
  for (const [name, field] of Object.entries(table) as [string, PipelineField<unknown>][]) {
    const node = nodes.get(name);
    if (node !== undefined) values[name] = field.read(node);
    const value = node === undefined ? field.fallback : values[name];
    if (value === undefined) continue;
    explanations.push({
      field: `${prefix}${name}`,
      value,
      ...(node !== undefined && { location: node.location }),
      ...field.explain(value),
    });
  }
  return values as T;
}

/** @throws CubeError INVALID_ARGUMENT naming every refused field */
export function checkPipelineConfig({ explanations }: PipelineConfig): void {
  const refused = explanations.filter(({ effect }) => effect === 'refused');
  if (refused.length === 0) return;
  const lines = refused.map(({ location, field, reason }) => `${location}: ${field}: ${reason}`);
  throw new CubeError('INVALID_ARGUMENT', lines.join('; '));
}

/** One line a field: `honoured: op.bow.timeout = 3000 (config.yml:9:5; limit of …)`. */
export function formatPipelineReport({ explanations }: PipelineConfig): string {
  return explanations
    .map(({ effect, field, value, location = 'default', reason }) => {
      return `${effect}: ${field} = ${JSON.stringify(value)} (${location}; ${reason})\n`;
    })
    .join('');
}
