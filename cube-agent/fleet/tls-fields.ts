/** The fields of agent.yaml and controller.yaml that say who the process is in TLS. */
import { CubeError } from '../../lib/core/errors.ts';
import type { YamlNode } from '../../lib/platform/yaml-node.ts';
import { type TlsFlags, tlsFilesOf } from '../../lib/rpc/credential-options.ts';

export const TLS_FIELDS: readonly string[] = ['tls-cert', 'tls-key', 'tls-ca', 'tls-server-name'];

/** Paths are absolute. */
export interface TlsFields extends TlsFlags {
  /** The name in the certificates of those who are called, where it is not their address. */
  readonly tlsServerName: string | undefined;
}

/** @param file makes the path of a field absolute. @throws CubeError INVALID_ARGUMENT when one of the files is missing */
export function readTlsFields(
  root: YamlNode,
  fields: ReadonlyMap<string, YamlNode>,
  file: (node: YamlNode | undefined) => string | undefined,
): TlsFields {
  const tls = {
    tlsCert: file(fields.get('tls-cert')),
    tlsKey: file(fields.get('tls-key')),
    tlsCa: file(fields.get('tls-ca')),
    tlsServerName: fields.get('tls-server-name')?.string(),
  };
  try {
    tlsFilesOf(tls);
  } catch (error) {
    root.fail(CubeError.from(error).message);
  }
  return tls;
}
