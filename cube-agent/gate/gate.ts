/**
 * The gate: golden rows through serving processes of the new version and of the one that it is to replace, what came of it held
 * against the limits, and a report. It decides nothing and moves nothing: its verdict is for people and for a rollout.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import { readText } from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { type Findings, findingsOf } from './findings.ts';
import {
  DEFAULT_LIMITS,
  type GateLimits,
  layLimitsOver,
  parsePolicy,
  readChanges,
} from './gate-limits.ts';
import { type GateReport, REPORT_FORMAT } from './gate-report.ts';
import { type SideStore, type SideWish, withSides } from './gate-sides.ts';
import {
  damagedError,
  type GoldenRows,
  NO_LABEL,
  readGoldenFile,
  readGoldenText,
} from './golden-rows.ts';
import { UnfitVersion } from './pinned-serving.ts';
import { replay } from './replay.ts';
import type { SideRecord } from './side-record.ts';
import { type Check, checksOf, requireFitMachine, unfitCheck, verdictOf } from './verdict.ts';

const GOLDEN_FILE = 'golden.jsonl';
const POLICY_FILE = 'policy.json';
const POLICY_BYTES_MAX = 1 << 20;

export interface GateOptions {
  readonly repository: Repository;
  /** The same as serving processes are to open it. */
  readonly location: string;
  readonly bundle: string;
  readonly version: string;
  /** The version to compare with; undefined: there is none yet. */
  readonly against: string | undefined;
  /** A file of golden rows; undefined: the version's own. */
  readonly golden: string | undefined;
  /** A file of limits; undefined: the version's, else the bundle's policy, else the defaults. */
  readonly policy: string | undefined;
  /** `name=value`, laid over them. */
  readonly limits: readonly string[];
  readonly rowsMax: number;
  readonly rowsPerRequest: number;
  /** To each version. */
  readonly requestsPerSecond: number;
  readonly requestsMin: number;
  readonly timeoutMs: number;
  readonly readyTimeoutMs: number;
  readonly store: SideStore;
  /** Processes that hold the versions already, as host:port. */
  readonly endpoints: {
    readonly candidate?: string | undefined;
    readonly baseline?: string | undefined;
  };
  readonly by: string;
  readonly signal: AbortSignal;
}

/**
 * @returns the report, whose verdict is about the version
 * @throws CubeError when the gate could not run, which says nothing about it
 */
export async function runGate(options: GateOptions): Promise<GateReport> {
  const { repository, bundle, version, against } = options;
  const manifest = await repository.manifest(bundle, version);
  if (against !== undefined) await repository.manifest(bundle, against);
  const { limits, policy } = await readLimits(options, manifest);
  const golden = await readGolden(options, manifest);
  const compared = await compare(options, golden);
  faultPoint('gate.compared');
  if (!('unfit' in compared)) requireFitMachine(compared.findings, limits);
  const checks: readonly Check[] =
    'unfit' in compared ? [unfitCheck(compared.unfit)] : checksOf(compared.findings, limits);
  const { rowsPerRequest, requestsPerSecond, by } = options;
  const labelled = golden.rows.filter(({ label }) => label !== NO_LABEL).length;
  return {
    format: REPORT_FORMAT,
    ...{ bundle, version, against: against ?? null },
    ...{ at: systemClock.isoTime(), by, verdict: verdictOf(checks) },
    golden: { source: golden.source, rows: golden.rows.length, total: golden.total, labelled },
    replay: { rowsPerRequest, requestsPerSecond },
    ...{ policy, limits, checks },
    ...('unfit' in compared ? {} : { findings: compared.findings }),
  };
}

async function readLimits(
  { repository, bundle, policy: path, limits: given }: GateOptions,
  { files, version }: Manifest,
): Promise<{ limits: GateLimits; policy: string }> {
  const found = async (): Promise<[string, GateLimits]> => {
    if (path !== undefined) return [path, parsePolicy(readText(path, POLICY_BYTES_MAX), path)];
    if (files.some((file) => file.path === POLICY_FILE)) {
      const bytes = await repository.readVersionFile(bundle, version, POLICY_FILE);
      const source = `${POLICY_FILE} of version ${version}`;
      return [source, parsePolicy(new TextDecoder().decode(bytes), source)];
    }
    const entry = (await repository.policy(bundle).history()).at(-1);
    if (entry === undefined) return ['defaults', DEFAULT_LIMITS];
    const source = `entry ${entry.seq} of the policy of ${bundle}`;
    const changes = readChanges(JsonReader.of(entry.limits, source));
    return [source, { ...DEFAULT_LIMITS, ...changes }];
  };
  const [source, limits] = await found();
  return { limits: layLimitsOver(limits, given), policy: [source, ...given].join(', ') };
}

async function readGolden(
  { repository, bundle, golden: path, rowsMax }: GateOptions,
  { files, version }: Manifest,
): Promise<GoldenRows> {
  if (path !== undefined) return readGoldenFile(path, rowsMax);
  if (!files.some((file) => file.path === GOLDEN_FILE)) {
    throw new CubeError(
      'NOT_FOUND',
      `version ${version} of ${bundle} has no ${GOLDEN_FILE}: give --golden, a file that serving --record wrote for example`,
    );
  }
  const bytes = await repository.readVersionFile(bundle, version, GOLDEN_FILE);
  const source = `${GOLDEN_FILE} of version ${version}`;
  return readGoldenText(new TextDecoder().decode(bytes), source, rowsMax);
}

/** @returns what was found, or why the new version can never be served */
async function compare(
  options: GateOptions,
  golden: GoldenRows,
): Promise<{ findings: Findings } | { unfit: string }> {
  const { location, bundle, version, against, endpoints, store, readyTimeoutMs, signal } = options;
  const candidate: SideWish = { role: 'candidate', version, endpoint: endpoints.candidate };
  const baseline: readonly SideWish[] =
    against === undefined
      ? []
      : [{ role: 'baseline', version: against, endpoint: endpoints.baseline }];
  const wishes = [candidate, ...baseline];
  const sides = { repository: location, bundle, wishes, store, readyTimeoutMs, signal };
  try {
    const [ours, theirs] = await withSides(sides, (both) => replayOn(both, options, golden));
    requireRowsTaken(golden, [ours!, ...(theirs === undefined ? [] : [theirs])]);
    const before =
      against === undefined || theirs === undefined
        ? undefined
        : { version: against, record: theirs };
    return { findings: findingsOf(golden.rows, { version, record: ours! }, before) };
  } catch (error) {
    // An active version that does not come up is no fault of the new one.
    if (error instanceof UnfitVersion && error.version === version) return { unfit: error.message };
    throw error;
  }
}

async function replayOn(
  sides: Parameters<typeof replay>[0],
  options: GateOptions,
  { rows }: GoldenRows,
): Promise<readonly SideRecord[]> {
  const { bundle, rowsPerRequest, requestsPerSecond, requestsMin, timeoutMs, signal } = options;
  const progress = startProgress(
    'replaying',
    Math.max(Math.ceil(rows.length / rowsPerRequest), requestsMin),
    'requests',
  );
  try {
    return await replay(sides, {
      ...{ bundle, rows, rowsPerRequest, requestsPerSecond, requestsMin, timeoutMs, signal },
      onRequest: (done) => progress.update(done),
    });
  } finally {
    progress.stop();
  }
}

/** A row that every version refuses is a damaged line, and no fault of a version. @throws CubeError naming the lines */
function requireRowsTaken({ source }: GoldenRows, records: readonly SideRecord[]): void {
  const [first, ...others] = records.map(
    ({ failedLines }) =>
      new Map(
        failedLines
          .filter(({ code }) => code === 'INVALID_ARGUMENT' || code === 'TOO_LARGE')
          .map(({ line, message }) => [line, message]),
      ),
  );
  const damaged = [...first!].filter(([line]) => others.every((other) => other.has(line)));
  if (damaged.length > 0) {
    throw damagedError(damaged.map(([line, message]) => `${source}, line ${line}: ${message}`));
  }
}
