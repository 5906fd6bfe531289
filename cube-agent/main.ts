#!/usr/bin/env node
/** The cube-agent command. */
import { run } from './cli.ts';

process.exitCode = await run();
