/** The TLS and token options that servers and their callers share. */
import { CubeError } from '../core/errors.ts';
import { type Command, Option, optionWithEnv, readEnvironment } from '../platform/cli.ts';
import { Credentials } from './credentials.ts';
import { CLIENT_CERTIFICATES, TLS_VERSIONS, type TlsFiles } from './tls-identity.ts';

const API_KEY_VARIABLE = 'HYPERCUBE_API_KEY';

export interface TlsOptions {
  readonly tlsCert?: string | undefined;
  readonly tlsKey?: string | undefined;
  readonly tlsCa?: string | undefined;
}

/** The options of callers of serving: an API key, and certificates for https and grpcs. */
export interface KeyOptions extends TlsOptions {
  readonly tlsServerName?: string | undefined;
  readonly apiKeyFile?: string | undefined;
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
function addTlsOptions(command: Command, trust: string): Command {
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

/** The options of a server's port. */
export interface ServerTlsOptions extends TlsOptions {
  readonly tlsClientCertificate?: TlsFiles['clientCertificate'];
  readonly tlsMinVersion?: TlsFiles['minVersion'];
  readonly tlsCiphers?: string | undefined;
}

export function addServerTlsOptions(command: Command, trust: string): Command {
  return addTlsOptions(command, trust)
    .addOption(
      new Option(
        '--tls-client-certificate <when>',
        'Whether callers over TLS must have a client certificate (default: optional)',
      ).choices(CLIENT_CERTIFICATES),
    )
    .addOption(
      new Option(
        '--tls-min-version <version>',
        'Lowest TLS version to accept (default: TLSv1.2)',
      ).choices(TLS_VERSIONS),
    )
    .option(
      '--tls-ciphers <list>',
      "Ciphers to accept, as OpenSSL lists them (default: those of Node's TLS)",
    );
}

/** Returns undefined without TLS. @throws CubeError INVALID_ARGUMENT as `toTlsFiles` */
export function toServerTlsFiles(flags: ServerTlsOptions): TlsFiles | undefined {
  const { tlsClientCertificate: clientCertificate, tlsMinVersion: minVersion } = flags;
  const files = toTlsFiles(flags);
  return files && { ...files, clientCertificate, minVersion, ciphers: flags.tlsCiphers };
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

/** Adds the options of callers of serving. A key is never the value of a flag. */
export function addKeyOptions(command: Command): Command {
  return addCallerTlsOptions(command).addOption(
    optionWithEnv(
      '--api-key-file <file>',
      `File with the API key to send (default: the variable ${API_KEY_VARIABLE}, or none)`,
      'HYPERCUBE_API_KEY_FILE',
    ),
  );
}

/** Credentials for calls to serving. @throws CubeError when a file is unreadable or invalid */
export function createCallerCredentials(flags: KeyOptions): Credentials {
  const { apiKeyFile: tokenFile, tlsServerName, tlsCert: cert, tlsKey: key, tlsCa: ca } = flags;
  if ((cert === undefined) !== (key === undefined)) {
    throw new CubeError('INVALID_ARGUMENT', 'a client certificate needs tls-cert and tls-key');
  }
  const hasTls = [cert, ca, tlsServerName].some((value) => value !== undefined);
  return new Credentials({
    tokenFile,
    token: tokenFile === undefined ? readEnvironment(API_KEY_VARIABLE) : undefined,
    tls: hasTls ? { cert, key, ca } : undefined,
    tlsServerName,
  });
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
