/** `cube-agent rollout`: does what a controller does, for one version, from a terminal. */

import { CubeError } from '../../lib/core/errors.ts';
import { GOLDEN_FILE } from '../../lib/core/golden-row.ts';
import type { RolloutState } from '../../lib/core/rollout.ts';
import {
  type Command,
  InvalidArgumentError,
  parseIntegerBetween,
  parseNameOption,
} from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import {
  addDecryptOptions,
  type DecryptOptions,
  shareDecryptKeys,
} from '../../lib/platform/encryption-options.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { LiveText, printLine } from '../../lib/platform/terminal-output.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { CallerOptions } from '../../lib/rpc/credential-options.ts';
import { shouldPause } from '../rollout/next-step.ts';
import {
  type BundleRolloutConfig,
  HEALTH_DEFAULTS,
  POLICY_DEFAULTS,
  parseReplicas,
  readControllerConfig,
} from '../rollout/rollout-config.ts';
import { RolloutDriver, type RolloutProgress } from '../rollout/rollout-driver.ts';
import {
  describeStep,
  formatStatusLine,
  formatStatusTable,
  toRolloutStatus,
} from '../rollout/rollout-status.ts';
import {
  addAgentCredentialOption,
  addAuthorOption,
  addServerCredentialOptions,
  addSigningKeyOption,
  addVersionOption,
  addWritableChannelOptions,
  type ChannelOptions,
  collectEndpoints,
  collectValues,
  openRepositoryWithKeys,
} from './options.ts';
import { openLiveFleet } from './rollout-setup.ts';

const POLL_MS = 250;
const DAY_MS = 86_400_000;
/** Interrupted; the rollout can be continued. */
const EXIT_UNFINISHED = 3;

interface RolloutOptions extends ChannelOptions, CallerOptions, DecryptOptions {
  readonly version: string;
  readonly fleet: string;
  readonly config?: string;
  readonly canary?: string;
  readonly canaryMs: number;
  readonly replicas: number | 'all';
  readonly gate: boolean;
  readonly gateFlag: readonly string[];
  readonly serving?: readonly string[];
  readonly watchMs: number;
  readonly stagingMs: number;
  readonly reason: string;
  readonly by: string;
  readonly resume?: boolean;
  readonly abort?: boolean;
  readonly wait?: boolean;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

interface RolloutParts {
  readonly repository: Repository;
  readonly rollouts: BundleRolloutConfig;
}

interface DriverParts extends RolloutParts {
  readonly stopping: AbortSignal;
}

interface GateNeeds extends RolloutParts {
  readonly options: RolloutOptions;
}

const EXAMPLES = `
Exit code: 0 active; 1 failed, or another version was activated; 2 wrong usage; 3 interrupted
(Ctrl-C), continue with --resume.

Examples:
  cube-agent rollout --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json
  cube-agent rollout --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json \\
    --canary canary --canary-ms 600000 --serving 10.0.0.5:9000 --watch-ms 900000 --wait
  cube-agent rollout --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json \\
    --resume
  cube-agent rollout --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json \\
    --abort --reason "wrong training data"`;

export function addRolloutCommand(program: Command): void {
  const command = addSigningKeyOption(
    addAgentCredentialOption(
      addServerCredentialOptions(addWritableChannelOptions(program.command('rollout'))),
    ),
  );
  addPolicyOptions(addVersionOption(addDecryptOptions(command), 'Version to roll out'))
    .description('Roll out one version: stage, gate, activate, watch')
    .option(
      '--reason <text>',
      'Reason of --abort to record in the history; other steps record their own',
      'aborted',
    )
    .option(
      '--resume',
      'Continue an interrupted rollout, or retry one that failed for a reason other than the ' +
        'version',
    )
    .option('--abort', 'End the rollout; channels that it moved go back')
    .option('--wait', 'Also wait while the version is watched (default: return once active)')
    .option('--dry-run', 'Print the next step and do nothing')
    .option('--json', 'Print each change as a line of JSON')
    .addHelpText('after', EXAMPLES)
    .action(async (options: RolloutOptions) => {
      shareDecryptKeys(options);
      process.exitCode = await runRollout(options);
    });
}

function addPolicyOptions(command: Command): Command {
  const { watchMs, stagingMs } = POLICY_DEFAULTS;
  const parseMs = parseIntegerBetween(0, 30 * DAY_MS);
  return addAuthorOption(command)
    .requiredOption('--fleet <file>', 'fleet.json with the servers to roll out to')
    .option(
      '--config <file>',
      'controller.yaml; use the settings of the bundle in it instead of --channel, --canary, ' +
        '--canary-ms, --replicas, --no-gate, --gate-flag, --serving, --watch-ms and --staging-ms ' +
        '(default: none)',
    )
    .option(
      '--canary <name>',
      'Channel to activate the version on before --channel (default: none)',
      parseNameOption('channel'),
    )
    .option(
      '--canary-ms <n>',
      'Time to watch the version on the canary channel before --channel moves, in milliseconds ' +
        '(hold-ms in controller.yaml)',
      parseMs,
      0,
    )
    .option(
      '--replicas <n>',
      'Replicas of each shard that must load the version before the gate, or all',
      parseReplicasOption,
      'all',
    )
    .option('--no-gate', 'Skip the gate (default: the version must pass it)')
    .option(
      '--gate-flag <flag>',
      'Further option of cube-agent gate, such as --gate-flag=--rows=1000; repeatable',
      collectValues,
      [],
    )
    .option(
      '--serving <host:port>',
      'Serving process whose metrics are watched; repeatable (default: none)',
      collectEndpoints,
    )
    .option(
      '--watch-ms <n>',
      'Time after activation in which worse metrics of --serving cause a rollback, in milliseconds',
      parseMs,
      watchMs,
    )
    .option('--staging-ms <n>', 'Timeout of staging in milliseconds', parseMs, stagingMs);
}

function parseReplicasOption(text: string): number | 'all' {
  try {
    return parseReplicas(text);
  } catch (error) {
    throw new InvalidArgumentError((error as Error).message);
  }
}

async function runRollout(options: RolloutOptions): Promise<number> {
  const { version, abort, dryRun, reason, wait = false } = options;
  const stopping = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => stopping.abort());
  }
  const repository = openRepositoryWithKeys(options);
  const rollouts = readBundleRollouts(options);
  const driver = openDriver(options, { repository, rollouts, stopping: stopping.signal });
  const shown = new ProgressPrinter(version, options.json ?? false);
  if (abort && !dryRun) {
    await driver.abort(reason);
  } else {
    const progress = await driver.inspect();
    if (!abort) await requireGoldenRows(progress, { repository, rollouts, options });
    if (dryRun) {
      shown.show(progress);
      return 0;
    }
    await startOrResume(driver, progress, options);
  }
  for (;;) {
    const progress = await driver.advance();
    shown.show(progress);
    const code = computeExitCode(progress, wait);
    if (code === 1 && progress.state === 'retired') throw createOvertakenError(options, progress);
    if (code !== undefined) return code;
    if (shouldPause(progress.step)) await systemClock.sleep(POLL_MS, stopping.signal);
    if (stopping.signal.aborted) {
      process.stderr.write('interrupted; continue the rollout with --resume\n');
      return EXIT_UNFINISHED;
    }
  }
}

/** Undefined while the rollout continues. @throws CubeError CONFLICT if people have to decide */
function computeExitCode({ state, step }: RolloutProgress, wait: boolean): number | undefined {
  if (step.kind === 'wait' && step.isBlocked) throw new CubeError('CONFLICT', describeStep(step));
  if (state === 'active' && !wait && step.kind === 'wait') return 0;
  if (step.kind !== 'done') return undefined;
  return state === 'active' ? 0 : 1;
}

/** A rollout never moves the channels away from a version that was activated after its own. */
function createOvertakenError(
  { bundle, version, channel }: RolloutOptions,
  { fleet }: RolloutProgress,
): CubeError {
  const last = fleet.channels.at(-1);
  return new CubeError(
    'CONFLICT',
    `${bundle} ${version} was overtaken: channel ${last?.channel ?? channel} points to ` +
      `${last?.pointer ?? 'no version'}; to roll ${version} out again, run this without --resume`,
  );
}

/**
 * Starts a rollout, or again one that is over. A rollout that the channels have left since it ended
 * is retired first; with --resume it stays so, because there is nothing to continue.
 * @throws CubeError CONFLICT if the rollout has ended and --resume is missing
 */
async function startOrResume(
  driver: RolloutDriver,
  { state, step }: RolloutProgress,
  { version, bundle, resume }: RolloutOptions,
): Promise<void> {
  if (resume && state === undefined) {
    const text = `there is no rollout of ${bundle} ${version} to resume`;
    throw new CubeError('NOT_FOUND', `${text}; start one without --resume`);
  }
  if (hasEnded(state) && !resume) {
    const text = `the rollout of ${bundle} ${version} has ended as ${state}`;
    throw new CubeError('CONFLICT', `${text}; retry it with --resume`);
  }
  if (step.kind === 'enter' && step.state === 'retired') {
    if (resume) return;
    await driver.advance();
  }
  await driver.restart();
}

function hasEnded(state: RolloutState | undefined): boolean {
  return state === 'failed' || state === 'rolled-back';
}

/**
 * Refuses a rollout whose gate could not run before anything is staged: staging may take hours.
 * @throws CubeError NOT_FOUND if the gate needs the golden rows of a version that has none
 */
async function requireGoldenRows(
  { state, fleet }: RolloutProgress,
  { repository, rollouts, options: { bundle, version, config } }: GateNeeds,
): Promise<void> {
  const { policy, gateFlags } = rollouts;
  const isAhead = state === undefined || hasEnded(state);
  const needsRows = policy.gate && !gateFlags.some((flag) => /^--golden(=|$)/.test(flag));
  if (!isAhead || !needsRows || fleet.manifestFailure !== undefined) return;
  const { files } = await repository.readManifest(bundle, version);
  if (files.some(({ path }) => path === GOLDEN_FILE)) return;
  const [golden, noGate] =
    config === undefined
      ? ['--gate-flag=--golden=<file>', '--no-gate']
      : [`gate-flags: [--golden, <file>] in ${config}`, 'gate: false'];
  throw new CubeError(
    'NOT_FOUND',
    `version ${version} of ${bundle} has no ${GOLDEN_FILE}, so the gate cannot compare it: ` +
      'publish versions with cube-builder --golden, name a file that serving --record wrote with ' +
      `${golden}, or skip the gate with ${noGate}`,
  );
}

function openDriver(
  options: RolloutOptions,
  { repository, rollouts, stopping }: DriverParts,
): RolloutDriver {
  const { bundle, version, fleet: fleetFile, by: holder } = options;
  const logger = createLogger('cube-agent rollout', { level: 'warn' });
  const place = { repository: options.repository, trustedKeys: options.trustedKeys };
  const fleet = openLiveFleet(
    { ...options, repository, source: place, fleetFile, holder, stopping, logger },
    rollouts,
  );
  const { policy } = rollouts;
  return new RolloutDriver({
    repository,
    bundle,
    version,
    policy,
    fleet,
    holder,
    logger,
    clock: systemClock,
  });
}

/** @throws CubeError NOT_FOUND if the file does not have the bundle */
function readBundleRollouts(options: RolloutOptions): BundleRolloutConfig {
  const { config, bundle, channel, canary, canaryMs, watchMs, stagingMs } = options;
  if (config !== undefined) {
    const found = readControllerConfig(config).bundles.find(({ name }) => name === bundle);
    if (found !== undefined) return found;
    throw new CubeError('NOT_FOUND', `${config} does not have bundle ${bundle}`);
  }
  const first = canary === undefined ? [] : [{ channel: canary, holdMs: canaryMs }];
  return {
    name: bundle,
    policy: {
      ...POLICY_DEFAULTS,
      channels: [...first, { channel, holdMs: 0 }],
      replicas: options.replicas,
      gate: options.gate,
      watchMs,
      stagingMs,
    },
    health: HEALTH_DEFAULTS,
    serving: options.serving ?? [],
    gateFlags: options.gateFlag,
  };
}

/** Prints a table that is updated in place on a terminal, and lines of changes elsewhere. */
class ProgressPrinter {
  readonly #version: string;
  readonly #isJson: boolean;
  readonly #live = new LiveText();
  #last = '';

  constructor(version: string, isJson: boolean) {
    this.#version = version;
    this.#isJson = isJson;
  }

  show(progress: RolloutProgress): void {
    const status = toRolloutStatus(this.#version, progress);
    if (!this.#isJson && process.stdout.isTTY) {
      this.#live.draw(formatStatusTable(status));
      return;
    }
    const line = this.#isJson ? JSON.stringify(status) : formatStatusLine(status);
    if (line !== this.#last) printLine(line);
    this.#last = line;
  }
}
