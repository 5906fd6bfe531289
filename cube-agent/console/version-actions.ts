/**
 * The actions of the console on versions, as control calls of a controller. Each is recorded with
 * its author and reason, as the commands of cube-agent do.
 */
import type { ControlVerb } from '../../lib/access/scopes.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import type { BundleController } from '../rollout/bundle-controller.ts';
import { RolloutDriver } from '../rollout/rollout-driver.ts';
import type { GateRuns } from './gate-runs.ts';

const REASON_CHARS_MAX = 500;
const AUTHOR_CHARS_MAX = 100;
const DEFAULT_AUTHOR = 'console';
export const ACTIONS = [
  'rollout',
  'abort',
  'stage',
  'gate',
  'activate',
  'rollback',
  'quarantine',
  'lift',
] as const;

const ACTION_SCOPES: Readonly<Record<(typeof ACTIONS)[number], `control:${ControlVerb}`>> = {
  rollout: 'control:activate',
  abort: 'control:rollback',
  stage: 'control:stage',
  gate: 'control:stage',
  activate: 'control:activate',
  rollback: 'control:rollback',
  quarantine: 'control:quarantine',
  lift: 'control:quarantine',
};

/** The scope that an action needs; an unknown action, which will fail, needs the widest. */
export function findActionScope(action: string): `control:${ControlVerb}` {
  const name = ACTIONS.find((known) => known === action);
  return name === undefined ? 'control:activate' : ACTION_SCOPES[name];
}

interface ActionRequest {
  readonly controller: BundleController;
  readonly version: string;
  readonly channel: string;
  readonly by: string;
  readonly reason: string;
}

/** @throws CubeError INVALID_ARGUMENT, NOT_FOUND, CONFLICT */
export async function runAction(
  controllers: readonly BundleController[],
  gates: GateRuns,
  action: string,
  body: unknown,
): Promise<object> {
  const name = ACTIONS.find((known) => known === action);
  if (name === undefined) {
    throw new CubeError('NOT_FOUND', `no such action; there are: ${ACTIONS.join(', ')}`);
  }
  const request = readRequest(controllers, body);
  if (name === 'gate') await gates.start(request.controller, request.version, request);
  else await perform(name, request);
  return { done: name, version: request.version };
}

async function perform(
  action: Exclude<(typeof ACTIONS)[number], 'gate'>,
  { controller, version, channel, by, reason }: ActionRequest,
): Promise<void> {
  const { bundle, repository } = controller.options;
  const attribution = { by, reason };
  switch (action) {
    case 'rollout':
      await startRollout(controller, version, attribution);
      return;
    case 'abort':
      await new RolloutDriver({ ...controller.options, version, holder: by }).abort(reason);
      return;
    case 'stage':
      await repository.activate(bundle, CANDIDATE_CHANNEL, { version, ...attribution });
      return;
    case 'activate':
      await repository.activate(bundle, channel, { version, ...attribution });
      return;
    case 'rollback':
      // Fails if another rollback has left the version that the page showed.
      await repository.rollback(bundle, channel, by, reason, version);
      return;
    case 'quarantine':
      await repository.quarantine(bundle, version, attribution);
      return;
    case 'lift':
      await repository.liftQuarantine(bundle, version, { channel, ...attribution });
  }
}

/** The controller continues what the first entry of the log begins. */
async function startRollout(
  { options }: BundleController,
  version: string,
  { by, reason }: { readonly by: string; readonly reason: string },
): Promise<void> {
  const { bundle, repository } = options;
  await repository.readManifest(bundle, version);
  const log = repository.rolloutLog(bundle, version);
  if ((await log.readHistory()).length > 0) {
    if (await new RolloutDriver({ ...options, version, holder: by }).restart(reason)) return;
    throw new CubeError('CONFLICT', `the rollout of ${bundle} ${version} has not ended`);
  }
  if ((await repository.listQuarantined(bundle)).has(version)) {
    throw new CubeError('CONFLICT', `version ${version} of ${bundle} is quarantined`);
  }
  await log.append(0, { state: 'seen', holder: by, reason });
}

function readRequest(controllers: readonly BundleController[], body: unknown): ActionRequest {
  const text = body instanceof Uint8Array ? new TextDecoder().decode(body) : '';
  const json = JsonReader.parse(text, 'body');
  json.rejectUnknownFields(['bundle', 'version', 'channel', 'by', 'reason']);
  const name = (field: string): string => json.field(field).string(NAME_PATTERN, NAME_RULE);
  const bundle = name('bundle');
  const controller = controllers.find(({ options }) => options.bundle === bundle);
  if (controller === undefined) {
    throw new CubeError('NOT_FOUND', `this controller does not have bundle ${bundle}`);
  }
  const last = controller.options.policy.channels.at(-1)?.channel ?? '';
  const reason = json.field('reason').string().trim().slice(0, REASON_CHARS_MAX);
  if (reason === '') json.field('reason').fail('a reason for the history');
  const by = json.optional('by', (field) => field.string().trim().slice(0, AUTHOR_CHARS_MAX));
  return {
    controller,
    version: name('version'),
    channel: json.optional('channel', (f) => f.string(NAME_PATTERN, NAME_RULE)) ?? last,
    by: by || DEFAULT_AUTHOR,
    reason,
  };
}
