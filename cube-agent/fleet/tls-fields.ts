/** The TLS fields of agent.yaml and controller.yaml. */
import { CubeError } from '../../lib/core/errors.ts';
import type { YamlNode } from '../../lib/platform/yaml.ts';
import { type TlsOptions, toTlsFiles } from '../../lib/rpc/credential-options.ts';

export const TLS_FIELDS: readonly string[] = ['tls-cert', 'tls-key', 'tls-ca', 'tls-server-name'];

/** With absolute paths. */
export interface TlsFields extends TlsOptions {
  /** Name in the certificates of called processes, if it is not their address. */
  readonly tlsServerName: string | undefined;
}

/**
 * @param file makes the path of a field absolute
 * @throws CubeError INVALID_ARGUMENT when only some of the files are given
 */
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
    toTlsFiles(tls);
  } catch (error) {
    root.fail(CubeError.from(error).message);
  }
  return tls;
}
