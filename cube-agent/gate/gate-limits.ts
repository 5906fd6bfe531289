/**
 * How far a version may be from the one it replaces: policy.json of the version, or the bundle's policy, laid over by flags. Every
 * limit has a default; null switches one off. JSON Schema: docs/schemas/gate-policy.schema.json.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';

interface LimitRule {
  /** Null: not checked unless somebody sets it. */
  readonly byDefault: number | null;
  /** Of what may be set; the least is 0. */
  readonly max: number;
  readonly meaning: string;
}

const limit = (byDefault: number | null, max: number, meaning: string): LimitRule => ({
  byDefault,
  max,
  meaning,
});

export type LimitName =
  | 'errorsMax'
  | 'unavailableMax'
  | 'driftMeanMax'
  | 'driftP50Max'
  | 'driftP99Max'
  | 'driftLargestMax'
  | 'psiMax'
  | 'aucDropMax'
  | 'aucMin'
  | 'loglossRiseMax'
  | 'calibrationShiftMax'
  | 'unseenRiseMax'
  | 'slotUnseenRiseMax'
  | 'unseenMax'
  | 'latencyP50RatioMax'
  | 'latencyP99RatioMax'
  | 'latencySlackMs'
  | 'latencyP99MsMax'
  | 'qualityRowsMin';

/** Every limit, in the order of the report. Names end in what they bound: the most, or the least. */
export const LIMIT_RULES: Readonly<Record<LimitName, LimitRule>> = {
  errorsMax: limit(0, 1, 'share of the rows sent that were not answered'),
  unavailableMax: limit(0, 1, 'share of the lookups that no replica answered'),
  driftMeanMax: limit(0.02, 1, 'mean of |difference of the two scores of a row|'),
  driftP50Max: limit(null, 1, 'its median'),
  driftP99Max: limit(0.2, 1, 'its 99th percentile'),
  driftLargestMax: limit(null, 1, 'the largest of all rows'),
  psiMax: limit(
    0.2,
    100,
    "population stability index of the scores, over the active version's deciles",
  ),
  aucDropMax: limit(0.01, 1, 'by how much AUC may fall'),
  aucMin: limit(null, 1, 'the least AUC'),
  loglossRiseMax: limit(0.05, 100, 'by which share of itself logloss may rise'),
  calibrationShiftMax: limit(0.1, 100, 'by which share of itself calibration may move'),
  unseenRiseMax: limit(0.02, 1, 'by how much the share of lookups without a row may rise'),
  slotUnseenRiseMax: limit(0.1, 1, 'the same in any one slot'),
  unseenMax: limit(null, 1, 'the largest share of lookups without a row'),
  latencyP50RatioMax: limit(2, 1000, 'median latency over that of the active version'),
  latencyP99RatioMax: limit(3, 1000, '99th percentile over that of the active version'),
  latencySlackMs: limit(
    5,
    600_000,
    'milliseconds more than the active version that are no difference',
  ),
  latencyP99MsMax: limit(null, 600_000, 'milliseconds of the 99th percentile'),
  qualityRowsMin: limit(
    100,
    1e9,
    'labelled rows below which AUC, logloss and calibration are not checked',
  ),
};

export type GateLimits = Readonly<Record<LimitName, number | null>>;

/** What a policy says; the limits that it leaves out have their defaults. */
export type LimitChanges = Readonly<Partial<GateLimits>>;

export const LIMIT_NAMES: readonly LimitName[] = Object.keys(LIMIT_RULES) as LimitName[];

/** A line for each, with its default, for help texts. */
export const LIMIT_HELP: string = LIMIT_NAMES.map((name) => {
  const { byDefault, meaning } = LIMIT_RULES[name];
  return `  ${name.padEnd(20)} ${String(byDefault ?? 'none').padStart(5)}  ${meaning}`;
}).join('\n');

const NAMED_VALUE = /^(\w+)=(\d+(?:\.\d+)?(?:e-?\d+)?|none)$/;

export const DEFAULT_LIMITS: GateLimits = Object.fromEntries(
  LIMIT_NAMES.map((name) => [name, LIMIT_RULES[name].byDefault]),
) as GateLimits;

/** Reads policy.json: an object of limits. @throws CubeError INVALID_ARGUMENT naming the field */
export function parsePolicy(text: string, source: string): GateLimits {
  return { ...DEFAULT_LIMITS, ...readChanges(JsonReader.parse(text, source)) };
}

/** @throws CubeError INVALID_ARGUMENT naming the field */
export function readChanges(json: JsonReader): LimitChanges {
  const limits: Partial<Record<LimitName, number | null>> = {};
  for (const [name, field] of json.entries()) {
    if (name === '$schema') continue;
    if (!isLimitName(name))
      return field.fail(`no such limit (there are: ${LIMIT_NAMES.join(', ')})`);
    if (field.value === null) {
      limits[name] = null;
      continue;
    }
    const value = field.number();
    const { max } = LIMIT_RULES[name];
    if (value < 0 || value > max) field.fail(`a number in 0..${max}, or null`);
    limits[name] = value;
  }
  return limits;
}

/** Lays `name=value` over limits, `name=none` switches one off. @throws CubeError INVALID_ARGUMENT */
export function layLimitsOver<T extends LimitChanges>(limits: T, given: readonly string[]): T {
  const changed: Partial<Record<LimitName, number | null>> = {};
  for (const text of given) {
    const [, name = '', value = ''] = NAMED_VALUE.exec(text) ?? [];
    if (!isLimitName(name)) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--limit ${text.slice(0, 100)}: expected <limit>=<number>, or =none (limits: ${LIMIT_NAMES.join(', ')})`,
      );
    }
    const json = value === 'none' ? 'null' : value;
    Object.assign(
      changed,
      readChanges(JsonReader.parse(`{"${name}": ${json}}`, `--limit ${text}`)),
    );
  }
  return { ...limits, ...changed };
}

function isLimitName(name: string): name is LimitName {
  return Object.hasOwn(LIMIT_RULES, name);
}
