/**
 * What fails on a host or in the fleet, as data. Programs read the fields of the operation; `what`
 * and `message` are the same facts as text for people and are never parsed.
 */
import type { ErrorCode } from '../../lib/core/errors.ts';
import type { JsonReader } from '../../lib/core/json.ts';

const ACTIONS = [
  'fetch',
  'stage',
  'make-room',
  'remove-version',
  'remove-layer',
  'load',
  'activate',
  'unload',
  'read-channel',
  'read-manifest',
  'check-tables',
  'check-shard',
  'contact-server',
  'run-server',
  'contact-agent',
  'save-state',
  'remove-leftovers',
] as const;

export type Action = (typeof ACTIONS)[number];

/** What a process was doing. Two operations with equal fields are the same operation. */
export interface Operation {
  readonly action: Action;
  readonly version?: string | undefined;
  readonly table?: string | undefined;
  readonly contentId?: string | undefined;
  readonly channel?: string | undefined;
  /** Control address, host:port. */
  readonly server?: string | undefined;
}

/** What failed and why. The operation is missing in reports of older agents. */
export interface ProblemFields extends Omit<Operation, 'action'> {
  readonly action?: Action | undefined;
  readonly code: ErrorCode;
  readonly message: string;
}

/** An operation of an agent that failed and has not succeeded since. */
export interface Problem extends ProblemFields {
  /** The operation as text: "fetch 2 t/0123…", "load 2 on 127.0.0.1:8000". */
  readonly what: string;
  /** Time of the first failure, ISO 8601. */
  readonly since: string;
  readonly attempts: number;
}

/** Text for logs and status tables. */
export function describeOperation(operation: Operation): string {
  const { action, version, table, contentId, channel, server } = operation;
  switch (action) {
    case 'fetch':
      return `fetch ${version}${table === undefined ? '' : ` ${table}/${contentId}`}`;
    case 'stage':
      return `stage ${version}`;
    case 'make-room':
      return `make room for ${version}`;
    case 'remove-version':
      return `remove ${version}`;
    case 'remove-layer':
      return `remove layer ${table}/${contentId}`;
    case 'load':
    case 'activate':
    case 'unload':
      return `${action} ${version} on ${server}`;
    case 'read-channel':
      return `read channel ${channel}`;
    case 'read-manifest':
      return `read the manifest of ${version}`;
    case 'check-tables':
      return `use version ${version} on ${server}`;
    case 'check-shard':
      return `check the shard of ${server}`;
    case 'contact-server':
      return `contact server ${server}`;
    case 'run-server':
      return `run the server at ${server}`;
    case 'contact-agent':
      return 'contact the agent';
    case 'save-state':
      return 'save the agent state';
    case 'remove-leftovers':
      return 'remove leftover files';
  }
}

/** An action that this release does not know is ignored: the problem then has only its text. */
export function parseProblem(json: JsonReader): Problem {
  const text = (name: string): string | undefined => json.optional(name, (field) => field.string());
  const action = ACTIONS.find((known) => known === text('action'));
  return {
    what: json.field('what').string(),
    code: json.field('code').string() as ErrorCode,
    message: json.field('message').string(),
    since: json.field('since').string(),
    attempts: json.field('attempts').integer(1),
    action,
    version: text('version'),
    table: text('table'),
    contentId: text('contentId'),
    channel: text('channel'),
    server: text('server'),
  };
}
