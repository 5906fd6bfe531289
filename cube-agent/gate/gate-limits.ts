/**
 * The limits of the gate: policy.json of the version, or the bundle's policy, overridden by flags.
 * Every limit has a default; null disables it. JSON Schema: docs/schemas/gate-policy.schema.json.
 */
import { JsonReader } from '../../lib/core/json.ts';
import { UsageError } from '../../lib/platform/cli.ts';

interface LimitRule {
  /** Null: disabled by default. */
  readonly defaultValue: number | null;
  /** Maximum value that may be set; the minimum is 0. */
  readonly max: number;
  readonly meaning: string;
}

const limit = (byDefault: number | null, max: number, meaning: string): LimitRule => ({
  defaultValue: byDefault,
  max,
  meaning,
});

export type LimitName =
  | 'errorsMax'
  | 'unavailableMax'
  | 'expectedDifferenceMax'
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
  | 'qualityRowsMin'
  | 'shadowRequestsMin'
  | 'shadowErrorsMax';

/** All limits in the order of the report. A name ends in Max or Min, the kind of its bound. */
export const LIMIT_RULES: Readonly<Record<LimitName, LimitRule>> = {
  errorsMax: limit(0, 1, 'maximum share of rows that were not answered'),
  unavailableMax: limit(0, 1, 'maximum share of keys that are unavailable (no replica answered)'),
  expectedDifferenceMax: limit(
    1e-5,
    1,
    'maximum difference of a score from the one that its golden row carries',
  ),
  driftMeanMax: limit(0.02, 1, 'maximum mean, over all rows, of the absolute score difference'),
  driftP50Max: limit(null, 1, 'maximum median, over all rows, of the absolute score difference'),
  driftP99Max: limit(
    0.2,
    1,
    'maximum 99th percentile, over all rows, of the absolute score difference',
  ),
  driftLargestMax: limit(null, 1, 'maximum absolute score difference of a single row'),
  psiMax: limit(0.2, 100, 'maximum population stability index of the scores'),
  aucDropMax: limit(0.01, 1, 'maximum drop of AUC'),
  aucMin: limit(null, 1, 'minimum AUC'),
  loglossRiseMax: limit(0.05, 100, 'maximum relative rise of logloss'),
  calibrationShiftMax: limit(
    0.1,
    100,
    'maximum relative change of calibration (mean score / click rate)',
  ),
  unseenRiseMax: limit(
    0.02,
    1,
    'maximum rise of the share of unseen keys (keys that are not in the table)',
  ),
  slotUnseenRiseMax: limit(0.1, 1, 'maximum rise of the share of unseen keys in any one slot'),
  unseenMax: limit(null, 1, 'maximum share of unseen keys'),
  latencyP50RatioMax: limit(
    2,
    1000,
    "maximum ratio of the candidate's median latency to the baseline's",
  ),
  latencyP99RatioMax: limit(
    3,
    1000,
    "maximum ratio of the candidate's 99th percentile latency to the baseline's",
  ),
  latencySlackMs: limit(5, 600_000, 'latency difference in milliseconds that counts as equal'),
  latencyP99MsMax: limit(
    null,
    600_000,
    'maximum 99th percentile latency of the candidate in milliseconds',
  ),
  qualityRowsMin: limit(
    100,
    1e9,
    'minimum number of labelled rows for checks of AUC, logloss and calibration',
  ),
  shadowRequestsMin: limit(
    null,
    1e9,
    'minimum number of shadowed requests that the candidate has answered; the gate waits for them',
  ),
  shadowErrorsMax: limit(0.01, 1, 'maximum share of shadowed requests that failed'),
};

export type GateLimits = Readonly<Record<LimitName, number | null>>;

/** The limits that a policy sets. Others keep their defaults. */
export type LimitOverrides = Readonly<Partial<GateLimits>>;

export const LIMIT_NAMES: readonly LimitName[] = Object.keys(LIMIT_RULES) as LimitName[];

/** One line per limit with its default, for help texts. */
export const LIMIT_HELP: string = LIMIT_NAMES.map((name) => {
  const { defaultValue, meaning } = LIMIT_RULES[name];
  return `  ${name.padEnd(20)} ${String(defaultValue ?? 'none').padStart(5)}  ${meaning}`;
}).join('\n');

const LIMIT_FLAG = /^(\w+)=(\d+(?:\.\d+)?(?:e-?\d+)?|none)$/;

export const DEFAULT_LIMITS: GateLimits = Object.fromEntries(
  LIMIT_NAMES.map((name) => [name, LIMIT_RULES[name].defaultValue]),
) as GateLimits;

/**
 * Parses policy.json: an object of limits.
 * @throws CubeError INVALID_ARGUMENT naming the field
 */
export function parsePolicy(text: string, source: string): GateLimits {
  return { ...DEFAULT_LIMITS, ...parseLimits(JsonReader.parseFile(text, source)) };
}

/** @throws CubeError INVALID_ARGUMENT naming the field */
export function parseLimits(json: JsonReader): LimitOverrides {
  json.rejectUnknownFields(['$schema', ...LIMIT_NAMES]);
  const limits: Partial<Record<LimitName, number | null>> = {};
  for (const [name, field] of json.entries()) {
    if (!isLimitName(name)) continue;
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

/**
 * Overrides limits with `name=value`; `name=none` disables one.
 * @throws UsageError; CubeError INVALID_ARGUMENT for a number out of range
 */
export function applyLimitFlags<T extends LimitOverrides>(limits: T, flags: readonly string[]): T {
  const changed: Partial<Record<LimitName, number | null>> = {};
  for (const text of flags) {
    const [name = '', value = ''] = text.split('=', 2);
    if (!isLimitName(name)) {
      throw new UsageError(
        `--limit ${text.slice(0, 100)}: unknown limit; known are ${LIMIT_NAMES.join(', ')}`,
      );
    }
    if (!LIMIT_FLAG.test(text)) {
      throw new UsageError(`--limit ${text.slice(0, 100)}: expected a number or none`);
    }
    const json = value === 'none' ? 'null' : value;
    Object.assign(
      changed,
      parseLimits(JsonReader.parse(`{"${name}": ${json}}`, `--limit ${text}`)),
    );
  }
  return { ...limits, ...changed };
}

function isLimitName(name: string): name is LimitName {
  return Object.hasOwn(LIMIT_RULES, name);
}
