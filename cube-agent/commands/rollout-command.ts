/** `cube-agent rollout`: what a controller does, for one version and from a terminal. */

import { CubeError } from '../../lib/core/errors.ts';
import {
  type Command,
  InvalidArgumentError,
  integerBetween,
  nameOption,
} from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { LiveText, print } from '../../lib/platform/text-table.ts';
import type { CallerFlags } from '../../lib/rpc/credential-options.ts';
import { isPause } from '../rollout/next-step.ts';
import {
  type BundleRollouts,
  HEALTH_DEFAULTS,
  POLICY_DEFAULTS,
  readControllerConfig,
  replicasOf,
} from '../rollout/rollout-config.ts';
import { type Progress, RolloutDriver } from '../rollout/rollout-driver.ts';
import { rolloutStatus, statusLine, statusTable, whyOf } from '../rollout/rollout-status.ts';
import { addSigningKeyOption, openWithKeys } from './keys.ts';
import {
  addAgentTokenOption,
  addTargetOptions,
  addTokenOption,
  collectEndpoints,
  defaultAuthor,
  type TargetOptions,
} from './options.ts';
import { openLiveFleet } from './rollout-setup.ts';

const ASK_AGAIN_MS = 250;
const DAY_MS = 86_400_000;
/** Stopped before the end: somebody may go on. */
const EXIT_UNFINISHED = 3;

interface RolloutOptions extends TargetOptions, CallerFlags {
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

const EXAMPLES = `
Exit code: 0 active, 1 failed, 2 wrong usage, 3 stopped before the end (Ctrl-C): --resume goes on.

Examples:
  cube-agent rollout --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json
  cube-agent rollout --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json \\
    --canary canary --canary-ms 600000 --serving 10.0.0.5:9000 --watch-ms 900000 --wait
  cube-agent rollout --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json --resume
  cube-agent rollout --repository /srv/models --bundle ctr-dnn --version 2 --fleet fleet.json \\
    --abort --reason "wrong training data"`;

export function addRolloutCommand(program: Command): void {
  const { watchMs, stagingMs } = POLICY_DEFAULTS;
  const millis = integerBetween(0, 30 * DAY_MS);
  addSigningKeyOption(
    addAgentTokenOption(addTokenOption(addTargetOptions(program.command('rollout')))),
  )
    .description('stage a version on the fleet, run the gate, point the channels, watch')
    .requiredOption('--version <name>', 'the version', nameOption('version'))
    .requiredOption('--fleet <file>', 'fleet.json: who is to hold it')
    .option('--config <file>', "controller.yaml: the bundle's policy, instead of the flags below")
    .option('--canary <name>', 'a channel that moves first', nameOption('channel'))
    .option('--canary-ms <n>', 'how long the version is watched there', millis, 0)
    .option('--replicas <n>', 'of each shard, before the gate: all, or a number', replicas, 'all')
    .option('--no-gate', 'compare nothing')
    .option('--gate-flag <flag>', 'a further flag of cube-agent gate; once for each', collect, [])
    .option('--serving <host:port>', 'whose metrics are watched; once for each', collectEndpoints)
    .option('--watch-ms <n>', 'after activation: roll back by itself', millis, watchMs)
    .option('--staging-ms <n>', 'how long staging may take', millis, stagingMs)
    .option('--reason <text>', 'of --abort: why', 'aborted')
    .option('--by <who>', 'who; kept in the history', defaultAuthor())
    .option(
      '--resume',
      'go on with a rollout that was left, or that failed for no fault of its own',
    )
    .option('--abort', 'end it; what it moved goes back')
    .option('--wait', 'also while the version is watched')
    .option('--dry-run', 'say what would be done next, and do nothing')
    .option('--json', 'for programs: a line for each change')
    .addHelpText('after', EXAMPLES)
    .action(async (options: RolloutOptions) => {
      process.exitCode = await rollOut(options);
    });
}

function replicas(text: string): number | 'all' {
  try {
    return replicasOf(text);
  } catch (error) {
    throw new InvalidArgumentError((error as Error).message);
  }
}

function collect(text: string, before: readonly string[]): string[] {
  return [...before, text];
}

async function rollOut(options: RolloutOptions): Promise<number> {
  const { version, abort, dryRun, reason, wait = false } = options;
  const stopping = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => stopping.abort());
  }
  const driver = openDriver(options, stopping.signal);
  const shown = new Shown(version, options.json ?? false);
  if (dryRun) {
    shown.show(await driver.look());
    return 0;
  }
  if (abort) await driver.abort(reason);
  else await begin(driver, options);
  for (;;) {
    const progress = await driver.advance();
    shown.show(progress);
    const code = exitCodeOf(progress, wait);
    if (code !== undefined) return code;
    if (isPause(progress.step)) await systemClock.sleep(ASK_AGAIN_MS, stopping.signal);
    if (stopping.signal.aborted) {
      process.stderr.write('stopped: the rollout stays as it is, --resume goes on with it\n');
      return EXIT_UNFINISHED;
    }
  }
}

/** Undefined: it goes on. @throws CubeError CONFLICT when people have to decide */
function exitCodeOf({ state, step }: Progress, wait: boolean): number | undefined {
  if (step.kind === 'wait' && step.isBlocked) throw new CubeError('CONFLICT', whyOf(step));
  if (state === 'active' && !wait && step.kind === 'wait') return 0;
  if (step.kind !== 'done') return undefined;
  return state === 'active' || state === 'retired' ? 0 : 1;
}

/** @throws CubeError CONFLICT for a rollout that nobody asked to go on with, or a version that was found bad */
async function begin(
  driver: RolloutDriver,
  { version, bundle, resume }: RolloutOptions,
): Promise<void> {
  const { state, step } = await driver.look();
  if (resume && state === undefined) {
    const text = `there is no rollout of ${bundle} ${version} to go on with`;
    throw new CubeError('NOT_FOUND', `${text}; leave --resume out to begin one`);
  }
  const hasEnded = state === 'failed' || state === 'rolled-back';
  if (hasEnded && !resume) {
    const text = `the rollout of ${bundle} ${version} is ${state}: ${whyOf(step)}`;
    throw new CubeError('CONFLICT', `${text}; --resume tries it again`);
  }
  await driver.restart();
}

function openDriver(options: RolloutOptions, stopping: AbortSignal): RolloutDriver {
  const { bundle, version, fleet: fleetFile, by: holder } = options;
  const logger = createLogger('cube-agent rollout', 'warn');
  const repository = openWithKeys(options);
  const place = { repository: options.repository, trustedKeys: options.trustedKeys };
  const rollouts = rolloutsOf(options);
  const fleet = openLiveFleet(
    { ...options, repository, place, fleetFile, holder, stopping, logger },
    rollouts,
  );
  const { policy } = rollouts;
  return new RolloutDriver({
    ...{ repository, bundle, version, policy, fleet, holder, logger, clock: systemClock },
  });
}

/** @throws CubeError NOT_FOUND when the file says nothing of the bundle */
function rolloutsOf(options: RolloutOptions): BundleRollouts {
  const { config, bundle, channel, canary, canaryMs, watchMs, stagingMs } = options;
  if (config !== undefined) {
    const found = readControllerConfig(config).bundles.find(({ name }) => name === bundle);
    if (found !== undefined) return found;
    throw new CubeError('NOT_FOUND', `${config} says nothing of bundle ${bundle}`);
  }
  const first = canary === undefined ? [] : [{ channel: canary, holdMs: canaryMs }];
  return {
    name: bundle,
    policy: {
      ...POLICY_DEFAULTS,
      channels: [...first, { channel, holdMs: 0 }],
      replicas: options.replicas,
      gate: options.gate,
      ...{ watchMs, stagingMs },
    },
    health: HEALTH_DEFAULTS,
    serving: options.serving ?? [],
    gateFlags: options.gateFlag,
  };
}

/** A table that is drawn over itself on a terminal, lines of what changes elsewhere. */
class Shown {
  readonly #version: string;
  readonly #isJson: boolean;
  readonly #live = new LiveText();
  #last = '';

  constructor(version: string, isJson: boolean) {
    this.#version = version;
    this.#isJson = isJson;
  }

  show(progress: Progress): void {
    const status = rolloutStatus(this.#version, progress);
    if (!this.#isJson && process.stdout.isTTY) {
      this.#live.draw(statusTable(status));
      return;
    }
    const line = this.#isJson ? JSON.stringify(status) : statusLine(status);
    if (line !== this.#last) print(line);
    this.#last = line;
  }
}
