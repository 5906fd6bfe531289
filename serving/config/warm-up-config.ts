/** How a model is warmed up, and which of its requests are recorded for that. */
import type { WarmUpEntry } from '../engine/warm-up-rows.ts';
import { rejectConfig, rejectSettings } from './reject-settings.ts';
import type { ModelSettings, WarmUpKind } from './settings.ts';

export interface WarmUpConfig {
  readonly kind: WarmUpKind;
  readonly file?: string;
  /** Synthetic requests; absent: a few rows and batches of growing size. */
  readonly entries?: readonly WarmUpEntry[];
  readonly timeoutMs: number;
}

export interface RecordConfig {
  readonly file: string;
  /** Share of requests to record: 0..1. */
  readonly share: number;
  readonly bytesMax: number;
  readonly filesMax: number;
  /** Names of features to record as missing. */
  readonly redact: readonly string[];
}

/** @throws CubeError INVALID_ARGUMENT when settings contradict each other */
export function readWarmUp(settings: ModelSettings): WarmUpConfig {
  const {
    warmUpFile: file,
    warmUpEntries: entries,
    warmUpTimeoutMs: timeoutMs = 30_000,
  } = settings;
  const implied = entries === undefined ? 'golden' : 'synthetic';
  const kind = settings.warmUp ?? (file === undefined ? implied : 'file');
  if (kind === 'file' && file === undefined)
    rejectConfig('--warm-up file needs --warm-up-file <file>');
  if (kind !== 'file')
    rejectSettings(settings, ['warmUpFile'], `not allowed with --warm-up ${kind}`);
  if (kind !== 'synthetic')
    rejectSettings(settings, ['warmUpEntries'], `not allowed with --warm-up ${kind}`);
  return {
    kind,
    timeoutMs,
    ...(file !== undefined && { file }),
    ...(entries !== undefined && { entries }),
  };
}

/** @throws CubeError INVALID_ARGUMENT for settings without --record */
export function readRecord(settings: ModelSettings): RecordConfig | undefined {
  const { record: file } = settings;
  if (file === undefined) {
    const keys = ['recordShare', 'recordBytes', 'recordFiles', 'recordRedact'] as const;
    rejectSettings(settings, keys, 'only allowed with --record');
    return undefined;
  }
  return {
    file,
    share: settings.recordShare ?? 0.01,
    bytesMax: settings.recordBytes ?? 64 << 20,
    filesMax: settings.recordFiles ?? 4,
    redact: settings.recordRedact ?? [],
  };
}
