/** The options of access control that servers share, on their command lines. */
import { checkAddressRange } from '../access/address-rules.ts';
import type { AccessConfig } from '../access/process-access.ts';
import { checkScope } from '../access/scopes.ts';
import { type Command, InvalidArgumentError, optionWithEnv } from '../platform/cli.ts';

const AUDIT_FILE_BYTES = 64 << 20;
const AUDIT_FILES = 10;

export interface AccessOptions {
  readonly keyFile?: string | undefined;
  readonly anonymousScopes?: readonly string[] | undefined;
  readonly allowedAddresses?: readonly string[] | undefined;
  readonly trustedProxies?: readonly string[] | undefined;
  readonly auditFile?: string | undefined;
}

export function addAccessOptions(command: Command): Command {
  return command
    .addOption(
      optionWithEnv(
        '--key-file <file>',
        'File of API keys, which hypercube keys writes; reread when it changes (default: no keys)',
        'HYPERCUBE_KEY_FILE',
      ),
    )
    .option(
      '--anonymous-scopes <scopes>',
      'Scopes of callers without a credential, separated by commas; none for no scope (default: ' +
        'all but control without --key-file, none with it)',
      (text) => (text === 'none' ? [] : parseList(text, checkScope)),
    )
    .option(
      '--allowed-addresses <ranges>',
      'Addresses and ranges (10.0.0.0/8) that may connect, separated by commas (default: all)',
      (text) => parseList(text, checkAddressRange),
    )
    .option(
      '--trusted-proxies <ranges>',
      'Proxies whose x-forwarded-for names the client, separated by commas (default: none)',
      (text) => parseList(text, checkAddressRange),
    )
    .option(
      '--audit-file <file>',
      'File to append control actions and refused credentials to, as JSON lines, rotated at ' +
        '64 MiB (default: none)',
    );
}

export function toAccessConfig({ auditFile, ...options }: AccessOptions): AccessConfig {
  const { keyFile, anonymousScopes, allowedAddresses, trustedProxies } = options;
  const audit =
    auditFile === undefined
      ? undefined
      : { path: auditFile, bytesMax: AUDIT_FILE_BYTES, filesMax: AUDIT_FILES };
  return { keyFile, anonymousScopes, allowedAddresses, trustedProxies, audit };
}

function parseList(text: string, check: (item: string) => string): string[] {
  try {
    return text.split(',').map((item) => check(item.trim()));
  } catch (error) {
    throw new InvalidArgumentError((error as Error).message);
  }
}
