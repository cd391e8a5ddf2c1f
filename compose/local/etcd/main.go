// Command etcd is the etcd server, built from its published module.
// `go install module@version` refuses it (its go.mod has replace lines), hence this file.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
