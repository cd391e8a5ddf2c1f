// Command etcdctl is etcd's own command line client, built from its published module.
package main

import "go.etcd.io/etcd/etcdctl/v3/ctlv3"

func main() {
	ctlv3.MustStart()
}
