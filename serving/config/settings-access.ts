/** The settings of access control and TLS; part of the table in settings.ts. */
import { checkAddressRange } from '../../lib/access/address-rules.ts';
import { checkScope } from '../../lib/access/scopes.ts';
import type { CLIENT_CERTIFICATES, TLS_VERSIONS } from '../../lib/rpc/tls-identity.ts';
import * as kinds from './setting-kinds.ts';

export interface AccessSettings {
  readonly keyFile?: string;
  readonly keyUsageFile?: string;
  readonly anonymousScopes?: readonly string[];
  readonly certificateScopes?: readonly string[];
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  readonly tlsCa?: string;
  readonly tlsClientCertificate?: (typeof CLIENT_CERTIFICATES)[number];
  readonly tlsMinVersion?: (typeof TLS_VERSIONS)[number];
  readonly tlsCiphers?: string;
  readonly tlsOnly?: boolean;
  readonly allowedAddresses?: readonly string[];
  readonly trustedProxies?: readonly string[];
  readonly corsOrigins?: readonly string[];
  readonly auditFile?: string;
  readonly auditFileBytes?: number;
  readonly auditFiles?: number;
}

const ACCESS = 'Access (docs/security.md):';
const TLS = 'TLS (docs/security.md):';

const scope = kinds.checked('scope', checkScope);
const addressRange = kinds.checked('address', checkAddressRange);
const origin = kinds.checked('origin', checkOrigin);

export const ACCESS_SETTINGS: kinds.Table<AccessSettings> = {
  keyFile: {
    kind: kinds.text,
    group: ACCESS,
    isCommon: true,
    isPath: true,
    help:
      'File of API keys, which hypercube keys writes; reread when it changes (default: no keys, ' +
      'predictions and metrics are open)',
  },
  keyUsageFile: {
    kind: kinds.text,
    group: ACCESS,
    isPath: true,
    help:
      'File where this process saves the daily usage of keys, so that quotas survive a restart ' +
      '(only with --key-file; default: quotas begin anew)',
  },
  anonymousScopes: {
    kind: kinds.optionalList(scope),
    group: ACCESS,
    help:
      'Scopes of callers without a credential, separated by commas; none for no scope (default: ' +
      'predict, metrics and tables without --key-file, none with it)',
  },
  certificateScopes: {
    kind: kinds.optionalList(scope),
    group: ACCESS,
    help:
      'Scopes of callers with a trusted client certificate and no key, separated by commas; none ' +
      'for no scope (default: all)',
  },
  allowedAddresses: {
    kind: kinds.list(addressRange),
    group: ACCESS,
    help:
      'Addresses and ranges (10.0.0.0/8) that may connect, separated by commas; other ' +
      'connections are closed (default: all)',
  },
  trustedProxies: {
    kind: kinds.list(addressRange),
    group: ACCESS,
    help:
      'Addresses and ranges of proxies whose x-forwarded-for names the client, for ' +
      '--allowed-addresses and the audit file (default: none)',
  },
  corsOrigins: {
    kind: kinds.list(origin),
    group: ACCESS,
    help:
      'Origins of web pages that browsers may let call this process, separated by commas; * ' +
      'for all (default: none)',
  },
  auditFile: {
    kind: kinds.text,
    group: ACCESS,
    isPath: true,
    help:
      'File to append control actions and refused credentials to, one JSON object per line ' +
      '(default: none)',
  },
  auditFileBytes: {
    kind: kinds.bytes,
    group: ACCESS,
    help:
      'Size at which the file of --audit-file is renamed to <file>.1 and a new one begins ' +
      '(default: 64MiB)',
  },
  auditFiles: {
    kind: kinds.integer(1, 100, 'number'),
    group: ACCESS,
    help: 'Number of audit files to keep, including the current one (default: 10)',
  },
  tlsCert: {
    kind: kinds.text,
    group: TLS,
    isPath: true,
    help:
      'TLS certificate of this process with its chain (PEM), for all protocols of the port; ' +
      'reread when it changes (default: no TLS)',
  },
  tlsKey: {
    kind: kinds.text,
    group: TLS,
    isPath: true,
    help: 'Private key of --tls-cert (PEM)',
  },
  tlsCa: {
    kind: kinds.text,
    group: TLS,
    isPath: true,
    help: 'Certificate authorities (PEM) of client certificates (default: none are requested)',
  },
  tlsClientCertificate: {
    kind: kinds.choice(['optional', 'required']),
    group: TLS,
    help:
      'Whether callers over TLS must have a client certificate of --tls-ca; the handshake fails ' +
      'without a required one (default: optional)',
  },
  tlsMinVersion: {
    kind: kinds.choice(['TLSv1.2', 'TLSv1.3']),
    group: TLS,
    help: 'Lowest TLS version to accept (default: TLSv1.2)',
  },
  tlsCiphers: {
    kind: kinds.text,
    group: TLS,
    help: "Ciphers to accept, as OpenSSL lists them (default: those of Node's TLS)",
  },
  tlsOnly: {
    kind: kinds.flag,
    group: TLS,
    help: 'Close connections without TLS (default: false, both are accepted on the port)',
  },
};

/** @throws CubeError INVALID_ARGUMENT */
function checkOrigin(text: string): string {
  if (text === '*' || /^https?:\/\/[A-Za-z0-9.[\]:-]+$/.test(text)) return text;
  return kinds.failExpected('* or an origin such as https://example.com', text);
}
