/** The options with which a process says who it is in TLS, the same for servers and for those who call them. */
import { CubeError } from '../core/errors.ts';
import { type Command, optionWithEnv } from '../platform/cli.ts';
import { Credentials } from './credentials.ts';
import type { TlsFiles } from './tls-identity.ts';

export interface TlsFlags {
  readonly tlsCert?: string | undefined;
  readonly tlsKey?: string | undefined;
  readonly tlsCa?: string | undefined;
}

/** Of those who call. */
export interface CallerFlags extends TlsFlags {
  readonly tlsServerName?: string | undefined;
  /** Of cube-servers. */
  readonly controlTokenFile?: string | undefined;
  /** Of agents. */
  readonly agentTokenFile?: string | undefined;
}

/** @param trust whose certificates `--tls-ca` is about */
export function addTlsOptions(command: Command, trust: string): Command {
  return command
    .addOption(
      optionWithEnv(
        '--tls-cert <file>',
        'the own certificate, and its chain (PEM)',
        'CUBE_TLS_CERT',
      ),
    )
    .addOption(optionWithEnv('--tls-key <file>', 'its key (PEM)', 'CUBE_TLS_KEY'))
    .addOption(optionWithEnv('--tls-ca <file>', `authorities: ${trust} (PEM)`, 'CUBE_TLS_CA'));
}

/** For those who call servers and agents. */
export function addCallerTlsOptions(command: Command): Command {
  return addTlsOptions(command, 'certificates of theirs are believed').addOption(
    optionWithEnv(
      '--tls-server-name <name>',
      'the name in the certificates of those who are called, where it is not their address',
      'CUBE_TLS_SERVER_NAME',
    ),
  );
}

/** @returns undefined where TLS is not wanted. @throws CubeError INVALID_ARGUMENT when a part is missing */
export function tlsFilesOf({ tlsCert, tlsKey, tlsCa }: TlsFlags): TlsFiles | undefined {
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

/** What to show to cube-servers. @throws CubeError when a file is unreadable, or is not what it should be */
export function serverCredentials(flags: CallerFlags): Credentials {
  return credentials(flags, flags.controlTokenFile);
}

/** What to show to agents. @throws CubeError as `serverCredentials` */
export function agentCredentials(flags: CallerFlags): Credentials {
  return credentials(flags, flags.agentTokenFile);
}

function credentials(flags: CallerFlags, tokenFile: string | undefined): Credentials {
  const { tlsServerName } = flags;
  return new Credentials({ tokenFile, tls: tlsFilesOf(flags), tlsServerName });
}
