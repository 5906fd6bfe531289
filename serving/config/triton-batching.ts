/** Reads Triton's dynamic batching: batch sizes, the queue delay, priorities and queue policies. */
import type { TextMessage } from '../../proto/text-format.ts';
import type { QueuePolicy } from '../engine/engine-options.ts';
import { readEnum, readMap } from './triton-fields.ts';
import { TIMEOUT_ACTIONS } from './triton-schema.ts';

export interface DynamicBatching {
  readonly preferredSizes: readonly number[];
  readonly maxQueueDelayMicros: number;
  readonly preserveOrdering: boolean;
  /** 0: requests have no priorities. */
  readonly priorityLevels: number;
  /** The level of requests that give none; 1 is the most urgent. */
  readonly defaultPriorityLevel: number;
  /** One for each priority level, one in all without levels; undefined when none is given. */
  readonly queuePolicies: readonly QueuePolicy[] | undefined;
}

const DEFAULT_QUEUE_POLICY: QueuePolicy = {
  timeoutAction: 'reject',
  timeoutMs: 0,
  allowsShorterTimeout: false,
  requestsMax: 0,
};

const BATCH_MAX = 4096;
const DELAY_MICROS_MAX = 1_000_000;
const LEVELS_MAX = 16;
const TIMEOUT_MICROS_MAX = 600_000_000;
const QUEUE_MAX = 1_000_000;

/** @throws CubeError INVALID_ARGUMENT */
export function readDynamicBatching(
  root: TextMessage,
  maxBatch: number | undefined,
): DynamicBatching | undefined {
  const [node] = root.messages('dynamic_batching');
  if (node === undefined) return undefined;
  const preferredSizes = node.integers('preferred_batch_size', 1, BATCH_MAX);
  const tooLarge = preferredSizes.find((rows) => maxBatch !== undefined && rows > maxBatch);
  if (tooLarge !== undefined) {
    node.failField(
      'preferred_batch_size',
      `preferred_batch_size ${tooLarge} is more than max_batch_size ${maxBatch}`,
    );
  }
  const priorityLevels = node.integer('priority_levels', 0, LEVELS_MAX) ?? 0;
  return {
    preferredSizes,
    maxQueueDelayMicros: node.integer('max_queue_delay_microseconds', 0, DELAY_MICROS_MAX) ?? 0,
    preserveOrdering: node.boolean('preserve_ordering') ?? false,
    priorityLevels,
    defaultPriorityLevel: readDefaultLevel(node, priorityLevels),
    queuePolicies: readPolicies(node, priorityLevels),
  };
}

function readDefaultLevel(node: TextMessage, levels: number): number {
  const level = node.integer('default_priority_level', 0, LEVELS_MAX) ?? 0;
  if (levels > 0 && (level < 1 || level > levels)) {
    const place = node.has('default_priority_level') ? 'default_priority_level' : 'priority_levels';
    node.failField(place, `default_priority_level: expected 1..${levels}, got ${level}`);
  }
  if (levels === 0 && level > 0) {
    node.failField('default_priority_level', 'default_priority_level needs priority_levels');
  }
  return level;
}

/** A level without a policy of its own has the default one. */
function readPolicies(node: TextMessage, levels: number): readonly QueuePolicy[] | undefined {
  const [defaultNode] = node.messages('default_queue_policy');
  const byLevel = readMap(node, 'priority_queue_policy', (entry) =>
    String(entry.integer('key', 0, LEVELS_MAX) ?? 0),
  );
  if (levels === 0 && defaultNode === undefined && byLevel.size === 0) return undefined;
  const byDefault = defaultNode === undefined ? DEFAULT_QUEUE_POLICY : readPolicy(defaultNode);
  const policies = new Array<QueuePolicy>(Math.max(1, levels)).fill(byDefault);
  for (const [key, entry] of byLevel) {
    const level = Number(key);
    if (level < 1 || level > levels) {
      const reason = levels === 0 ? 'it needs priority_levels' : `expected a level in 1..${levels}`;
      entry.fail(`priority_queue_policy ${key}: ${reason}`);
    }
    const [value] = entry.messages('value');
    policies[level - 1] = value === undefined ? DEFAULT_QUEUE_POLICY : readPolicy(value);
  }
  return policies;
}

function readPolicy(node: TextMessage): QueuePolicy {
  const micros = node.integer('default_timeout_microseconds', 0, TIMEOUT_MICROS_MAX) ?? 0;
  return {
    timeoutAction:
      readEnum(node, 'timeout_action', TIMEOUT_ACTIONS) === 'DELAY' ? 'delay' : 'reject',
    timeoutMs: micros / 1_000,
    allowsShorterTimeout: node.boolean('allow_timeout_override') ?? false,
    requestsMax: node.integer('max_queue_size', 0, QUEUE_MAX) ?? 0,
  };
}
