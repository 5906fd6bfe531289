/**
 * The gate: replays golden rows on serving processes of the candidate and of the baseline version,
 * checks the results against limits and writes a report. It changes nothing: its verdict is for
 * operators and rollouts.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { GOLDEN_FILE, hasScoreFeature } from '../../lib/core/golden-row.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { readSlotSpec } from '../../lib/core/slots.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import { readText } from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { computeFindings, type Findings } from './findings.ts';
import {
  applyLimitFlags,
  DEFAULT_LIMITS,
  type GateLimits,
  parseLimits,
  parsePolicy,
} from './gate-limits.ts';
import { type GateReport, REPORT_FORMAT } from './gate-report.ts';
import {
  type GoldenRows,
  invalidRowsError,
  NO_LABEL,
  readGoldenFile,
  readGoldenText,
} from './golden-rows.ts';
import { UnservableVersionError } from './pinned-serving.ts';
import { replay } from './replay.ts';
import type { ReplayRecord } from './replay-record.ts';
import {
  type ReplayTargetRequest,
  type ServingStore,
  withReplayTargets,
} from './replay-targets.ts';
import { readShadowFindings } from './shadow-findings.ts';
import {
  type Check,
  checkFindings,
  checkShadow,
  createUnservableCheck,
  decideVerdict,
  requireHealthyBaseline,
} from './verdict.ts';

const SLOTS_FILE = 'slots.json';
const POLICY_FILE = 'policy.json';
const POLICY_BYTES_MAX = 1 << 20;

export interface GateOptions {
  readonly repository: Repository;
  /** Its location, for serving processes. */
  readonly location: string;
  readonly bundle: string;
  readonly version: string;
  /** The baseline version; undefined: there is none yet. */
  readonly against: string | undefined;
  /** File with golden rows; undefined: the file of the version. */
  readonly golden: string | undefined;
  /** File with limits; undefined: that of the version, else the bundle's policy, else defaults. */
  readonly policy: string | undefined;
  /** `name=value`; they override the file. */
  readonly limits: readonly string[];
  readonly rowsMax: number;
  readonly rowsPerRequest: number;
  /** For each version. */
  readonly requestsPerSecond: number;
  readonly requestsMin: number;
  readonly timeoutMs: number;
  readonly readyTimeoutMs: number;
  readonly store: ServingStore;
  /** Running serving processes that have loaded the versions, host:port. */
  readonly endpoints: {
    readonly candidate?: string | undefined;
    readonly baseline?: string | undefined;
  };
  /** Serving processes that shadow requests to the candidate, host:port. */
  readonly shadows: readonly string[];
  readonly by: string;
  readonly signal: AbortSignal;
}

/** What a gate compares, and by which limits. */
export interface GateInputs {
  readonly limits: GateLimits;
  /** Sources of the limits. */
  readonly policy: string;
  readonly golden: GoldenRows;
}

/**
 * Reads and checks everything that a gate needs before it starts processes.
 * @throws CubeError when the gate could not run
 */
export async function readGateInputs(options: GateOptions): Promise<GateInputs> {
  const { repository, bundle, version, against } = options;
  const manifest = await repository.readManifest(bundle, version);
  if (against !== undefined) await repository.readManifest(bundle, against);
  const { limits, policy } = await readLimits(options, manifest);
  return { limits, policy, golden: await readGolden(options, manifest) };
}

/**
 * @returns the report with the verdict on the version
 * @throws CubeError when the gate could not run, so that there is no verdict
 */
export async function runGate(options: GateOptions): Promise<GateReport> {
  const { bundle, version, against } = options;
  const { limits, policy, golden } = await readGateInputs(options);
  // Before the replay, which would be in vain while too few requests are shadowed.
  const { shadowRequestsMin: requestsMin } = limits;
  const shadow =
    requestsMin === null
      ? undefined
      : await readShadowFindings(options.shadows, { bundle, version, against, requestsMin });
  const compared = await compareVersions(options, golden);
  faultPoint('gate.compared');
  if (!('unfit' in compared)) requireHealthyBaseline(compared.findings, limits);
  const checks: readonly Check[] = [
    ...('unfit' in compared
      ? [createUnservableCheck(compared.unfit)]
      : checkFindings(compared.findings, limits)),
    ...(shadow === undefined ? [] : checkShadow(shadow, limits)),
  ];
  const { rowsPerRequest, requestsPerSecond, by } = options;
  const labelled = golden.rows.filter(({ label }) => label !== NO_LABEL).length;
  return {
    format: REPORT_FORMAT,
    bundle,
    version,
    against: against ?? null,
    at: systemClock.isoTime(),
    by,
    verdict: decideVerdict(checks),
    golden: { source: golden.source, rows: golden.rows.length, total: golden.total, labelled },
    replay: { rowsPerRequest, requestsPerSecond },
    policy,
    limits,
    checks,
    ...('unfit' in compared ? {} : { findings: compared.findings }),
    ...(shadow !== undefined && { shadow }),
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
    const entry = (await repository.policyLog(bundle).readHistory()).at(-1);
    if (entry === undefined) return ['defaults', DEFAULT_LIMITS];
    const source = `entry ${entry.seq} of the policy of ${bundle}`;
    const changes = parseLimits(JsonReader.of(entry.limits, source));
    return [source, { ...DEFAULT_LIMITS, ...changes }];
  };
  const [source, limits] = await found();
  return { limits: applyLimitFlags(limits, given), policy: [source, ...given].join(', ') };
}

async function readGolden(
  { repository, bundle, golden: path, rowsMax }: GateOptions,
  { files, version }: Manifest,
): Promise<GoldenRows> {
  const hasSlots = files.some((file) => file.path === SLOTS_FILE);
  const slots = hasSlots
    ? await repository.readVersionFile(bundle, version, SLOTS_FILE)
    : undefined;
  const spec = slots && readSlotSpec(JsonReader.parse(new TextDecoder().decode(slots), SLOTS_FILE));
  const isFeature = spec?.features !== undefined && hasScoreFeature(spec.features);
  const sample = { rowsMax, hasScoreFeature: isFeature };
  if (path !== undefined) return readGoldenFile(path, sample);
  if (!files.some((file) => file.path === GOLDEN_FILE)) {
    throw new CubeError(
      'NOT_FOUND',
      `version ${version} of ${bundle} has no ${GOLDEN_FILE}: publish versions with ` +
        'cube-builder --golden, or name a file that serving --record wrote with --golden <file>',
    );
  }
  const bytes = await repository.readVersionFile(bundle, version, GOLDEN_FILE);
  const source = `${GOLDEN_FILE} of version ${version}`;
  return readGoldenText(new TextDecoder().decode(bytes), source, sample);
}

/** @returns the findings, or the reason why the candidate can never be served */
async function compareVersions(
  options: GateOptions,
  golden: GoldenRows,
): Promise<{ findings: Findings } | { unfit: string }> {
  const { location, bundle, version, against, endpoints, store, readyTimeoutMs, signal } = options;
  const candidate: ReplayTargetRequest = {
    role: 'candidate',
    version,
    endpoint: endpoints.candidate,
  };
  const baseline: readonly ReplayTargetRequest[] =
    against === undefined
      ? []
      : [{ role: 'baseline', version: against, endpoint: endpoints.baseline }];
  const requests = [candidate, ...baseline];
  const targets = { repository: location, bundle, requests, store, readyTimeoutMs, signal };
  try {
    const records = await withReplayTargets(targets, (started) =>
      runReplay(started, options, golden),
    );
    requireValidRows(golden, records);
    const [candidateResult, baselineResult] = records.map((record, i) => {
      return { version: requests[i]?.version ?? version, record };
    });
    if (candidateResult === undefined) throw new CubeError('INTERNAL', 'the replay has no results');
    return { findings: computeFindings(golden.rows, candidateResult, baselineResult) };
  } catch (error) {
    // A baseline that cannot be served is no fault of the candidate.
    if (error instanceof UnservableVersionError && error.version === version)
      return { unfit: error.message };
    throw error;
  }
}

async function runReplay(
  targets: Parameters<typeof replay>[0],
  options: GateOptions,
  { rows }: GoldenRows,
): Promise<readonly ReplayRecord[]> {
  const { bundle, rowsPerRequest, requestsPerSecond, requestsMin, timeoutMs, signal } = options;
  const progress = startProgress(
    'replaying',
    Math.max(Math.ceil(rows.length / rowsPerRequest), requestsMin),
    'requests',
  );
  try {
    return await replay(targets, {
      bundle,
      rows,
      rowsPerRequest,
      requestsPerSecond,
      requestsMin,
      timeoutMs,
      signal,
      onRequest: (done) => progress.update(done),
    });
  } finally {
    progress.stop();
  }
}

/**
 * A row that every version refuses is an invalid line, not a fault of a version.
 * @throws CubeError naming the lines
 */
function requireValidRows({ source }: GoldenRows, records: readonly ReplayRecord[]): void {
  const [first, ...others] = records.map(
    ({ failedLines }) =>
      new Map(
        failedLines
          .filter(({ code }) => code === 'INVALID_ARGUMENT' || code === 'TOO_LARGE')
          .map(({ line, message }) => [line, message]),
      ),
  );
  const damaged = [...(first ?? [])].filter(([line]) => others.every((other) => other.has(line)));
  if (damaged.length > 0) {
    throw invalidRowsError(damaged.map(([line, message]) => `${source}, line ${line}: ${message}`));
  }
}
