/** Reads the options of onnxruntime from Triton's `optimization` and `parameters`. */
import { suggestNames } from '../../lib/core/nearest-name.ts';
import { getProcessorCount } from '../../lib/platform/machine.ts';
import type { SessionTuning } from '../../lib/platform/onnx.ts';
import type { TextMessage } from '../../proto/text-format.ts';
import type { IgnoredSetting } from './config-report.ts';
import { readMap } from './triton-fields.ts';
import { IGNORED_PARAMETERS } from './triton-schema.ts';

type ReadParameter = (text: string) => SessionTuning | undefined;

/** 0 lets onnxruntime choose: one thread for each core. */
function readThreads(text: string): number | undefined {
  return /^\d{1,3}$/.test(text) ? Number(text) || getProcessorCount() : undefined;
}

function readSwitch(text: string): boolean | undefined {
  if (['1', 'true', 'on', 'yes'].includes(text.toLowerCase())) return true;
  return ['0', 'false', 'off', 'no'].includes(text.toLowerCase()) ? false : undefined;
}

/** How to read each parameter; undefined for a value that it cannot have. */
const SESSION_PARAMETERS: Readonly<Record<string, ReadParameter>> = {
  intra_op_thread_count: (text) => wrap('intraOpThreads', readThreads(text)),
  inter_op_thread_count: (text) => wrap('interOpThreads', readThreads(text)),
  execution_mode: (text) =>
    wrap('executionMode', ({ 0: 'sequential', 1: 'parallel' } as const)[text as '0' | '1']),
  enable_mem_arena: (text) => wrap('useMemoryArena', readSwitch(text)),
  enable_mem_pattern: (text) => wrap('useMemoryPattern', readSwitch(text)),
};

function wrap<K extends keyof SessionTuning>(
  key: K,
  value: SessionTuning[K],
): SessionTuning | undefined {
  return value === undefined ? undefined : { [key]: value };
}

/** @throws CubeError INVALID_ARGUMENT naming the parameter */
export function readSession(root: TextMessage, ignored: IgnoredSetting[]): SessionTuning {
  const session: SessionTuning = readOptimizationLevel(root);
  for (const [key, entry] of readMap(root, 'parameters')) {
    const text = entry.messages('value')[0]?.string('string_value') ?? '';
    const read = Object.hasOwn(SESSION_PARAMETERS, key) ? SESSION_PARAMETERS[key] : undefined;
    if (read === undefined) {
      const reason = IGNORED_PARAMETERS.get(key) ?? explainUnknown(key);
      ignored.push({ setting: `${entry.location} parameters.${key}`, reason });
      continue;
    }
    Object.assign(
      session,
      read(text) ?? entry.fail(`parameters.${key}: unknown value ${JSON.stringify(text)}`),
    );
  }
  return session;
}

function explainUnknown(key: string): string {
  const known = [...Object.keys(SESSION_PARAMETERS), ...IGNORED_PARAMETERS.keys()];
  return `not a parameter of onnxruntime; ${suggestNames(key, known)}`;
}

/** The levels of the onnxruntime backend, from -1 to 2. */
const LEVELS = ['basic', 'all', 'extended', 'disabled'] as const;

function readOptimizationLevel(root: TextMessage): SessionTuning {
  const [graph] = root.messages('optimization')[0]?.messages('graph') ?? [];
  const level = LEVELS[(graph?.integer('level', -1, 2) ?? 0) + 1];
  return level === undefined || graph === undefined ? {} : { optimizationLevel: level };
}
