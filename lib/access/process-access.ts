/** Opens what a process needs for access control: keys, usage, address rules and audit log. */
import { CubeError } from '../core/errors.ts';
import { systemClock, wallClockMs } from '../platform/clock.ts';
import type { Logger } from '../platform/logs.ts';
import type { RotatingFileOptions } from '../platform/rotating-file.ts';
import { AccessGate, type FindRequirement } from './access-gate.ts';
import { AddressRules } from './address-rules.ts';
import { AuditLog } from './audit-log.ts';
import { type AccessClock, KeyStore } from './key-store.ts';
import { UsageTable } from './usage-table.ts';

const CLOCK: AccessClock = { nowMs: () => systemClock.nowMs(), wallMs: wallClockMs };
const LOOPBACK = /^(localhost$|127\.|::1$)/;

/** The settings of access control; absent: as without any. */
export interface AccessConfig {
  readonly keyFile?: string | undefined;
  /** Where daily counts survive restarts. */
  readonly keyUsageFile?: string | undefined;
  readonly anonymousScopes?: readonly string[] | undefined;
  readonly certificateScopes?: readonly string[] | undefined;
  readonly allowedAddresses?: readonly string[] | undefined;
  readonly trustedProxies?: readonly string[] | undefined;
  readonly audit?: RotatingFileOptions | undefined;
}

export interface ProcessAccess {
  readonly gate: AccessGate;
  readonly audit: AuditLog | undefined;
  /** Saves what must survive a restart. */
  close(): void;
}

export interface ProcessAccessOptions {
  readonly config: AccessConfig;
  /** The program, for the audit log. */
  readonly processName: string;
  readonly findRequirement: FindRequirement;
  readonly logger: Logger;
}

/** @throws CubeError when a file is unreadable or invalid, or a scope or address is */
export function openProcessAccess(options: ProcessAccessOptions): ProcessAccess {
  const { config, processName, findRequirement, logger } = options;
  const { keyFile, keyUsageFile, allowedAddresses, trustedProxies, audit: file } = config;
  if (keyUsageFile !== undefined && keyFile === undefined) {
    throw new CubeError('INVALID_ARGUMENT', 'key-usage-file needs key-file');
  }
  const audit = file && new AuditLog(processName, file, logger, () => systemClock.isoTime());
  const usage = new UsageTable(keyUsageFile, logger, CLOCK);
  const hasRules = allowedAddresses !== undefined || trustedProxies !== undefined;
  const gate = new AccessGate({
    keys: keyFile === undefined ? undefined : new KeyStore(keyFile, logger, CLOCK),
    anonymousScopes: config.anonymousScopes,
    certificateScopes: config.certificateScopes,
    findRequirement,
    usage,
    addresses: hasRules
      ? new AddressRules({ allowed: allowedAddresses, trustedProxies })
      : undefined,
    audit,
    clock: CLOCK,
  });
  return { gate, audit, close: () => usage.close() };
}

/** Warns about what anybody may do who can reach an address that is not this host's own. */
export function warnIfOpen(host: string, { gate }: ProcessAccess, logger: Logger): void {
  const scopes = gate.anonymousScopes;
  if (LOOPBACK.test(host) || scopes.length === 0) return;
  logger.warn(
    { host, scopes },
    'callers without a credential have these scopes here; restrict them with --key-file, ' +
      '--anonymous-scopes or --allowed-addresses',
  );
}
