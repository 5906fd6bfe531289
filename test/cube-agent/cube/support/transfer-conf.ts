/** A transfer.conf as Cube's documentation has it, of two shards with a server each. */

/** @param options what differs from two servers that nobody asks */
export function makeTransferConf(
  options: {
    donefiles?: string;
    servers?: readonly string[];
    deployPaths?: readonly string[];
  } = {},
): string {
  const { donefiles = '/home/done', servers = ['10.0.0.1:8000', '10.0.0.2:8000'] } = options;
  const { deployPaths = servers.map(() => '/ssd2/cube_open') } = options;
  const hosts = servers.flatMap((server, shard) => [
    `agent${shard}_0: ${server.replace(/:\d+$/, ':8001')}`,
    `cube${shard}_0: ${server}:${deployPaths[shard]}`,
  ]);
  return `[default]
dict_name: test_dict
mode: base_only
download_mode: http
wget_port: 8098
buildtool_local: /ssd1/tools/cube-builder
donefile_address: ${donefiles}
output_address: /ssd1/output
tmp_address: /tmp
shard_num: ${servers.length}
copy_num: 1
deploy_path: /ssd1/cube_open
transfer_address: 127.0.0.1
[cube_agent]
${hosts.join('\n')}
`;
}
