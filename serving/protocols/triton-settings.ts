/**
 * Settings that Triton's clients read and change in a running server: traces, logs, and what a load
 * may override. Here they are fixed: requests that change nothing are answered, all others refused
 * with the reason.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { Logger } from '../../lib/platform/logs.ts';

export type SettingValue = string | number | boolean | readonly string[];
export type Settings = Readonly<Record<string, SettingValue>>;

/** Traces are always off. */
export const TRACE_SETTINGS: Settings = {
  trace_level: ['OFF'],
  trace_rate: '0',
  trace_count: '0',
  log_frequency: '0',
  trace_file: '',
  trace_mode: '',
};
const TRACE_REMEDY = 'traces are not supported; trace_level stays OFF';
const LOG_REMEDY = 'logs go to stderr; choose them with --log-level and --log-format at the start';
const UNLOAD_PARAMETERS = ['unload_dependents'];

export function getLogSettings(logger: Logger): Settings {
  return {
    log_file: '',
    log_info: logger.isLevelEnabled('info'),
    log_warning: logger.isLevelEnabled('warn'),
    log_error: logger.isLevelEnabled('error'),
    log_verbose_level: Number(logger.isLevelEnabled('debug')),
    log_format: 'default',
  };
}

/** @throws CubeError UNSUPPORTED naming the changed setting, INVALID_ARGUMENT for an unknown one */
export function checkTraceSettings(requested: Iterable<readonly [string, unknown]>): Settings {
  return checkUnchanged(requested, TRACE_SETTINGS, TRACE_REMEDY);
}

/** @throws CubeError as `checkTraceSettings` */
export function checkLogSettings(
  requested: Iterable<readonly [string, unknown]>,
  logger: Logger,
): Settings {
  return checkUnchanged(requested, getLogSettings(logger), LOG_REMEDY);
}

/** Null and an empty list reset a setting, which changes nothing. */
function checkUnchanged(
  requested: Iterable<readonly [string, unknown]>,
  current: Settings,
  remedy: string,
): Settings {
  for (const [name, value] of requested) {
    if (!Object.hasOwn(current, name)) {
      const names = Object.keys(current).join(', ');
      fail('INVALID_ARGUMENT', `unknown setting ${quoteInput(name)} (expected one of ${names})`);
    }
    const isReset = value === null || (Array.isArray(value) && value.length === 0);
    if (isReset || String(value) === String(current[name])) continue;
    fail('UNSUPPORTED', `${name} cannot be changed to ${quoteInput(String(value))}: ${remedy}`);
  }
  return current;
}

/**
 * Refuses overrides of a load: a model is served as its version was published. @throws CubeError
 * UNSUPPORTED, INVALID_ARGUMENT
 */
export function checkLoadParameters(names: Iterable<string>): void {
  for (const name of names) {
    if (name === 'config' || name.startsWith('file:')) {
      fail(
        'UNSUPPORTED',
        `parameter ${quoteInput(name)} is not supported: publish a new version, and load without ` +
          'parameters',
      );
    }
    fail('INVALID_ARGUMENT', `unknown parameter ${quoteInput(name)}: a load takes none`);
  }
}

/** @returns whether the steps of an ensemble are unloaded too @throws CubeError INVALID_ARGUMENT */
export function readUnloadParameters(parameters: Iterable<readonly [string, unknown]>): boolean {
  let withDependents = false;
  for (const [name, value] of parameters) {
    if (!UNLOAD_PARAMETERS.includes(name)) {
      const known = UNLOAD_PARAMETERS.join(', ');
      fail('INVALID_ARGUMENT', `unknown parameter ${quoteInput(name)} (expected ${known})`);
    }
    if (typeof value !== 'boolean') {
      fail('INVALID_ARGUMENT', `parameter ${name}: expected true or false`);
    }
    withDependents = value;
  }
  return withDependents;
}

function fail(code: 'UNSUPPORTED' | 'INVALID_ARGUMENT', message: string): never {
  throw new CubeError(code, message);
}
