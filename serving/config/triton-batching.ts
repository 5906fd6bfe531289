/** Reads Triton's dynamic batching: batch sizes, the queue delay, priorities and queue policies. */
import type { TextMessage } from '../../proto/text-format.ts';
import type { IgnoredSetting } from './config-report.ts';
import { readEnum } from './triton-fields.ts';
import { TIMEOUT_ACTIONS } from './triton-schema.ts';

/** What happens to requests that wait for an instance. */
export interface QueuePolicy {
  /** Requests that waited too long are rejected, or run after all others. */
  readonly timeoutAction: (typeof TIMEOUT_ACTIONS)[number];
  /** 0: no timeout. */
  readonly defaultTimeoutMicros: number;
  /** A request may give a timeout shorter than the default. */
  readonly allowTimeoutOverride: boolean;
  /** Requests that may wait; 0: no limit. */
  readonly maxQueueSize: number;
}

export interface DynamicBatching {
  readonly preferredSizes: readonly number[];
  readonly maxQueueDelayMicros: number;
  readonly preserveOrdering: boolean;
  /** 0: requests have no priorities. */
  readonly priorityLevels: number;
  /** The level of requests that give none; 1 is the most urgent. */
  readonly defaultPriorityLevel: number;
  readonly defaultQueuePolicy: QueuePolicy;
}

const DEFAULT_QUEUE_POLICY: QueuePolicy = {
  timeoutAction: 'REJECT',
  defaultTimeoutMicros: 0,
  allowTimeoutOverride: false,
  maxQueueSize: 0,
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
  ignored: IgnoredSetting[],
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
  const [policyNode] = node.messages('default_queue_policy');
  const policy = policyNode === undefined ? DEFAULT_QUEUE_POLICY : readQueuePolicy(policyNode);
  if (policyNode !== undefined && policy.timeoutAction === 'DELAY') {
    const setting = `${policyNode.getFieldLocation('timeout_action')} timeout_action`;
    ignored.push({ setting, reason: 'with DELAY, requests wait until their deadline' });
  }
  return {
    preferredSizes,
    maxQueueDelayMicros: node.integer('max_queue_delay_microseconds', 0, DELAY_MICROS_MAX) ?? 0,
    preserveOrdering: node.boolean('preserve_ordering') ?? false,
    priorityLevels,
    defaultPriorityLevel: readDefaultLevel(node, priorityLevels),
    defaultQueuePolicy: policy,
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

function readQueuePolicy(node: TextMessage): QueuePolicy {
  return {
    timeoutAction: readEnum(node, 'timeout_action', TIMEOUT_ACTIONS),
    defaultTimeoutMicros: node.integer('default_timeout_microseconds', 0, TIMEOUT_MICROS_MAX) ?? 0,
    allowTimeoutOverride: node.boolean('allow_timeout_override') ?? false,
    maxQueueSize: node.integer('max_queue_size', 0, QUEUE_MAX) ?? 0,
  };
}
