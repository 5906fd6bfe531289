/** The TLS and token options that servers and their callers share. */
import { CubeError } from '../core/errors.ts';
import { type Command, optionWithEnv } from '../platform/cli.ts';
import { Credentials } from './credentials.ts';
import type { TlsFiles } from './tls-identity.ts';

export interface TlsOptions {
  readonly tlsCert?: string | undefined;
  readonly tlsKey?: string | undefined;
  readonly tlsCa?: string | undefined;
}

/** The options of callers. */
export interface CallerOptions extends TlsOptions {
  readonly tlsServerName?: string | undefined;
  /** The token file for cube-servers. */
  readonly controlTokenFile?: string | undefined;
  /** The token file for agents. */
  readonly agentTokenFile?: string | undefined;
}

/** @param trust what the authorities are trusted for; ends the help text of `--tls-ca` */
export function addTlsOptions(command: Command, trust: string): Command {
  return command
    .addOption(
      optionWithEnv(
        '--tls-cert <file>',
        'TLS certificate of this process, with its chain (PEM)',
        'CUBE_TLS_CERT',
      ),
    )
    .addOption(
      optionWithEnv('--tls-key <file>', 'Private key of the TLS certificate (PEM)', 'CUBE_TLS_KEY'),
    )
    .addOption(
      optionWithEnv('--tls-ca <file>', `Certificate authorities (PEM) ${trust}`, 'CUBE_TLS_CA'),
    );
}

/** Adds the options of callers of servers and agents. */
export function addCallerTlsOptions(command: Command): Command {
  return addTlsOptions(command, 'that issued the certificates of servers and agents').addOption(
    optionWithEnv(
      '--tls-server-name <name>',
      'Name in the certificates of servers and agents (default: the address called)',
      'CUBE_TLS_SERVER_NAME',
    ),
  );
}

/**
 * Returns undefined without TLS. @throws CubeError INVALID_ARGUMENT when only some of the three
 * files are given
 */
export function toTlsFiles({ tlsCert, tlsKey, tlsCa }: TlsOptions): TlsFiles | undefined {
  if (tlsCert !== undefined && tlsKey !== undefined && tlsCa !== undefined) {
    return { cert: tlsCert, key: tlsKey, ca: tlsCa };
  }
  const all = { 'tls-cert': tlsCert, 'tls-key': tlsKey, 'tls-ca': tlsCa };
  const missing = Object.keys(all).filter((name) => all[name as keyof typeof all] === undefined);
  if (missing.length === 3) return undefined;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `TLS needs tls-cert, tls-key and tls-ca: ${missing.join(' and ')} missing`,
  );
}

/** Credentials for calls to cube-servers. @throws CubeError when a file is unreadable or invalid */
export function createServerCredentials(flags: CallerOptions): Credentials {
  return createCredentials(flags, flags.controlTokenFile);
}

/** Credentials for calls to agents. @throws CubeError as `createServerCredentials` */
export function createAgentCredentials(flags: CallerOptions): Credentials {
  return createCredentials(flags, flags.agentTokenFile);
}

function createCredentials(flags: CallerOptions, tokenFile: string | undefined): Credentials {
  const { tlsServerName } = flags;
  return new Credentials({ tokenFile, tls: toTlsFiles(flags), tlsServerName });
}
